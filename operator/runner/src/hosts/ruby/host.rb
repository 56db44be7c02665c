# The host's side of one program: its limits and clocks, its calls, and its end.
require "did_you_mean"

module Seance
  # Warnings beyond this many are only counted.
  WARNINGS_MAX = 32
  # How often the clocks are looked at, in microseconds of processor time.
  TICK_US = 20_000
  # Address space beyond what the program may use: frames, copies of values, what is required, stacks.
  ADDRESS_SPACE_RESERVE = 128 << 20
  # How long a host that is done waits to be killed before it ends by itself, in seconds.
  KILLED_WITHIN = 1
  # How programs in other languages give themselves away, tried only on what is no Ruby.
  OTHERS = {
    "JavaScript" => /^\s*(const|let|var)\s+[\w${\[]|\)\s*=>|\bfunction\b\s*\w*\s*\(|^\s*(import|export)\s.*\bfrom\b/,
    "Python" => /^\s*(async\s+)?def\s+\w+\(.*\).*:\s*$|^\s*(if|elif|else|for|while|with|try|except|class)\b.*:\s*$|^\s*(from\s+\w+\s+)?import\s+\w|\bawait\s/
  }.freeze

  class Host
    attr_reader :store

    def initialize(system, channel, start)
      @system, @channel, @limits = system, channel, start.limits
      @start = start
      @name = start.source_name.gsub(/[^[:print:]]/, "")[0, 256]
      @name = "program.rb" if @name.empty?
      @store = Store.new(self, start.kept, @limits.kept_bytes)
      @pending, @n_calls, @tasks = {}, 0, {}.compare_by_identity
      @warnings, @unawaited = [], []
      @is_lossy = @is_over = @is_reading = false
      # What sends, and what waits for who reads.
      @lock, @reading, @changed = Mutex.new, Mutex.new, ConditionVariable.new
      @cpu_before, @memory_before = cpu_us, peak_bytes
      @turn_began = @cpu_before
    end

    # Runs the program to its end, which is the end of the process. So much was mapped before it.
    def run(mapped_bytes)
      start_clocks(mapped_bytes)
      program = compiled
      $PROGRAM_NAME = @name
      $VERBOSE = false
      $stdout.sync = $stderr.sync = true
      Surface.install(self, @start)
      Thread.new { loop { Surface::SLEEP.bind_call(self, 1 << 30) } } if @limits.detect_deadlock.zero?
      completed(program.eval)
    rescue SystemExit => error
      error.success? ? finish : failed(error)
    rescue Exception => error
      failed(error)
    end

    # Values

    def write(value, bytes_max = JSON_BYTES_MAX)
      Values.write(value, bytes_max) do |message|
        # Once a program.
        warn("lossy_value", message) unless @is_lossy
        @is_lossy = true
      end
    end

    def warn(code, message)
      @warnings << (Frames.data(1, code) + Frames.data(2, Errors.cut(message))) if @warnings.size < WARNINGS_MAX
    end

    # Calls

    # Calls a tool and waits for its value.
    def call(tool, arguments)
      call = started(tool, write(arguments))
      wait(nil, call) { call.settled? }
      call.value
    ensure
      cancel(call) if call
    end

    # No longer waits for a call.
    def cancel(call)
      return if call.settled? || !@pending.delete(call.number)

      send(Frames::CANCEL_CALL, Frames.number(1, call.number))
    end

    def parallel(callables)
      Parallel.new(self, callables).run
    end

    # Runs what resumes a fiber that is one of those side by side.
    def as_task(fiber)
      @tasks[fiber] = true
      yield
    ensure
      @tasks.delete(fiber) unless fiber.alive?
    end

    # Waits until the block gives true, or for this moment of the clock. A task gives way to the others
    # meanwhile; `call` is what is given up with it.
    def wait(moment = nil, call = nil, &is_met)
      until is_met.call || (moment && now >= moment)
        if @tasks[Fiber.current]
          Fiber.yield([is_met, moment, call])
        else
          pause(moment && [moment - now, 0].max, &is_met)
        end
      end
      begin_turn
    end

    def sleep(*duration)
      seconds = duration.first
      began = now
      if seconds.nil?
        sleep_forever
      elsif @tasks[Fiber.current]
        wait(began + Float(seconds)) { false }
      else
        Surface::SLEEP.bind_call(self, seconds)
      end
      begin_turn
      (now - began).round
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # The end

    # Completes the program with this value. Nothing of it runs any more, no `ensure` either.
    def finish(value = nil)
      completed(value)
    rescue Exception => error
      failed(error)
    end

    private

    def compiled
      source = @start.source.delete_prefix("\u{feff}")
      RubyVM.keep_script_lines = true if RubyVM.respond_to?(:keep_script_lines=)
      RubyVM::InstructionSequence.compile(source, @name, @name, 1)
    rescue SyntaxError => error
      line, column, words = Errors.place_of(error, @name)
      fail("syntax_error", hint(source) + words, error_class: "SyntaxError", line: line, column: column)
    rescue SystemStackError, ArgumentError => error
      fail("syntax_error", hint(source) + error.message, error_class: "SyntaxError")
    end

    # Says so when a source that is no Ruby looks like another language.
    def hint(source)
      language, = OTHERS.find { |_, signs| source[0, 20_000].match?(signs) }
      language ? "this looks like #{language}, and it was run as Ruby: " : ""
    end

    def started(tool, text)
      Thread.handle_interrupt(Object => :never) do
        @lock.synchronize do
          limit = @limits.pending_calls
          if limit.positive? && @pending.size >= limit
            fail("call_limit", "more than #{limit} tool calls were waiting for an answer")
          end
          call = @pending[@n_calls + 1] = Call.new(@n_calls += 1, tool)
          send_held(Frames::TOOL_CALL, Frames.number(1, call.number) + Frames.data(2, tool) + Frames.data(3, text))
          call
        end
      end
    end

    # Takes the answers that come, or waits for the thread that does; so many seconds at most. What another
    # thread or a timeout raises here is raised while it waits, and never between an answer and its call.
    def pause(seconds, &is_met)
      Thread.handle_interrupt(Object => :never) do
        reads = @reading.synchronize do
          if @is_reading
            Thread.handle_interrupt(Object => :immediate) { @changed.wait(@reading, seconds) } unless is_met.call
            false
          else
            @is_reading = true
          end
        end
        take_results(seconds) if reads
      ensure
        @reading.synchronize { @is_reading = false } if reads
        @changed.broadcast if reads
      end
    end

    def take_results(seconds)
      @channel.receive(seconds).each do |kind, message|
        Process.exit!(1) unless kind == Frames::CALL_RESULT
        found = Frames.fields(message).to_h
        call = @pending.delete(found.fetch(1, 0)) or next
        call.settle(found[2] && Frames.text(found[2]), found[3] && tool_error(call, found[3]))
      end
    end

    def tool_error(call, message)
      found = Frames.fields(message).to_h
      code, said = [1, 2].map { |field| Frames.text(found.fetch(field, "")) }
      hint = near(call.tool) if code == "unknown_tool"
      said += " (did you mean #{hint}?)" if hint && !said.include?(hint)
      ToolError.new(said, code: code, tool: call.tool, call: call.number, retryable: found.fetch(3, 0) == 1)
    end

    # The name most like a wrong one, when one is like it at all.
    def near(name)
      names = @start.tools.map { |_, alias_, _| alias_ }
      DidYouMean::SpellChecker.new(dictionary: names).correct(name[0, 64]).first
    end

    # Frames

    # Sends a frame, whichever thread asks; none after the last.
    def send(kind, message)
      Thread.handle_interrupt(Object => :never) { @lock.synchronize { send_held(kind, message) } }
    end

    def send_held(kind, message)
      @channel.send(kind, message) unless @is_over
    end

    # Clocks

    def start_clocks(mapped_bytes)
      if @limits.memory_bytes.positive?
        n_bytes = mapped_bytes + @limits.memory_bytes + ADDRESS_SPACE_RESERVE
        Process.setrlimit(Process::RLIMIT_AS, n_bytes, n_bytes + ADDRESS_SPACE_RESERVE)
      end
      if @limits.cpu_ms.positive?
        # Our own clock comes first; the kernel's has whole seconds only.
        seconds = @limits.cpu_ms.fdiv(1000).ceil + 1
        Process.setrlimit(Process::RLIMIT_CPU, seconds, seconds + 1)
      end
      Signal.trap("PROF") { check_clocks }
      @system.tick(TICK_US)
    end

    def begin_turn
      @turn_began = cpu_us
    end

    # Ends the program when one of its clocks has run out. This is a signal's handler, which can't wait: not
    # while a frame is being sent.
    def check_clocks
      return if @is_over || @lock.locked?

      turn_ms, cpu_ms = @limits.turn_ms, @limits.cpu_ms
      if turn_ms.positive? && cpu_us - @turn_began > turn_ms * 1000
        ended(error: Errors.failure("turn_limit", "ran for more than #{turn_ms} ms without waiting for anything"))
      elsif cpu_ms.positive? && cpu_us - @cpu_before > cpu_ms * 1000
        ended(error: Errors.failure("cpu_limit", "used more than #{cpu_ms} ms of processor time"))
      end
    end

    def sleep_forever
      others = Thread.list.size > 1
      return Thread.stop if others && !@tasks[Fiber.current]
      return Surface::SLEEP.bind_call(self) if @limits.detect_deadlock.zero?

      line = caller_locations.find { |each| each.path == @name }&.lineno.to_i
      fail("deadlock", Errors::DEADLOCK, line: line)
    end

    # The end

    # Fails the program without an exception. Nothing of it runs any more.
    def fail(code, message, **place)
      ended(error: Errors.failure(code, message, **place))
    end

    def failed(error)
      if error.is_a?(NoMemoryError)
        _, hard = Process.getrlimit(Process::RLIMIT_AS)
        Process.setrlimit(Process::RLIMIT_AS, hard, hard)
      end
      # Much of another language can be parsed as Ruby, and then has no meaning.
      looks = error.is_a?(NameError) && @n_calls.zero? ? hint(@start.source) : ""
      ended(error: Errors.describe(error, @name, @limits.memory_bytes, looks))
    end

    # Ends a program that has run to its end, once its calls are finished.
    def completed(value)
      bytes_max = [@limits.value_bytes, JSON_BYTES_MAX].select(&:positive?).min
      begin
        json = value.nil? ? nil : write(value, bytes_max)
      rescue ProgramError => error
        # It is the value that is wrong, not a place in the source.
        fail(error.code, error.message)
      end
      @pending.each_value do |call|
        @unawaited << call.number
        warn("unawaited_call", "call #{call.number} of #{call.tool.inspect} was not waited for; it was finished first")
      end
      # In no task, which would let the others go on.
      pause(nil) { @pending.empty? } until @pending.empty?
      ended(json)
    end

    # Tells the runner how the program ended, and waits to be killed by it.
    def ended(json = nil, error: nil)
      @system.tick(0)
      flush
      kept, removed = error ? [{}, []] : @store.changes
      frame = [
        json ? Frames.data(1, json) : "", error ? Frames.data(2, error) : "",
        *kept.map { |key, text| Frames.data(3, Frames.data(1, key) + Frames.data(2, text)) },
        *removed.map { |key| Frames.data(4, key) },
        *@unawaited.map { |number| Frames.number(5, number) },
        *@warnings.map { |warning| Frames.data(6, warning) },
        Frames.number(7, cpu_us - @cpu_before), Frames.number(8, [peak_bytes - @memory_before, 0].max)
      ].join
      hold
      @is_over = true
      @channel.send(Frames::ENDED, frame)
      @channel.receive(KILLED_WITHIN)
      Process.exit!(0)
    end

    # Keeps frames of other threads from coming between, for good.
    def hold
      @lock.lock unless @lock.owned?
    rescue ThreadError
      # A handler of a signal may take no lock, and comes only when nobody has it.
    end

    def flush
      [$stdout, $stderr, STDOUT, STDERR].uniq.each(&:flush)
    rescue StandardError
      # It is closed, or something else.
    end

    def cpu_us
      Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :microsecond)
    end

    def peak_bytes
      @system.peak_bytes
    end
  end
end
