# The warm parent: has the interpreter and what programs require ready, and forks a host when asked.
#
# It was executed before there was any secret, has one thread, can't be traced, reads nothing but requests of
# the runner, and never sees a program. Its hosts become children of the runner, not of it.
require "socket"

module Seance
  # What programs often require; reading it again is what the warm parent saves them.
  OFTEN_REQUIRED = %w[
    base64 benchmark bigdecimal bigdecimal/util csv date delegate digest erb fiddle forwardable json matrix
    open-uri openssl optparse ostruct pathname prime pp securerandom set shellwords singleton stringio strscan
    strftime tempfile time timeout tsort uri yaml zlib
  ].freeze

  # What the kernel does and the core library has no method for. Numbers and the filters come with the facts.
  class System
    PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
    # For all threads: the interpreter may have one of its own.
    SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
    SIGKILL = 9
    ITIMER_PROF = 2
    PAGE_BYTES = 4096
    # Where addresses end: no process has more.
    ADDRESSES_END = 1 << 47
    # Descriptors a host may have: its three streams, its socket, the interpreter's own, and a little air.
    OPEN_FILES_MAX = 64

    def initialize(facts)
      @calls, @own_pid = facts.fetch("calls"), [facts.fetch("own_pid")].pack("L")
      @filters = facts.fetch("filters").map { |each| [each].pack("H*") }
    end

    def call(name, *arguments)
      syscall(@calls.fetch(name), *arguments)
    end

    # Against what other processes of the user may do to this one.
    def shield
      call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
      call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    end

    def die_with_parent
      call("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    end

    def duplicate(descriptor, place)
      call("dup3", descriptor, place, 0)
    end

    # Takes from this process what no program needs, for good. Everything here is depth: the boundary is the
    # pod, or the namespaces around it.
    def confine
      limits = { CORE: 0, FSIZE: 0, NOFILE: OPEN_FILES_MAX, MEMLOCK: 0 }
      limits.each { |limit, value| Process.setrlimit(limit, value, value) }
      pid = [Process.pid].pack("L")
      @filters.each do |filter|
        # A filter names the process it is for: the only one that may be sent a signal.
        program = filter.scan(/.{8}/mn).map { |each| each[4..] == @own_pid ? each[0, 4] + pid : each }.join
        described = [program.bytesize / 8].pack("S") + "\0" * 6 + [program].pack("p")
        call("seccomp", SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, address(described))
      end
    end

    # Sends SIGPROF whenever this much processor time was used; 0 ends it.
    def tick(microseconds)
      timer = [0, microseconds, 0, microseconds].pack("q4")
      call("setitimer", ITIMER_PROF, address(timer), 0)
    end

    def peak_bytes
      usage = "\0" * 144
      call("getrusage", 0, address(usage))
      usage.unpack1("q", offset: 32) * 1024
    end

    # What is mapped, found by what a limit on it refuses: where /proc can't be read, nothing else tells.
    def address_space_bytes
      soft, hard = Process.getrlimit(:AS)
      least, most = 0, [hard, ADDRESSES_END].min
      while most - least > PAGE_BYTES
        middle = (least + most) / 2
        Process.setrlimit(:AS, middle, hard)
        can_map? ? most = middle : least = middle
      end
      most
    ensure
      Process.setrlimit(:AS, soft, hard)
    end

    private

    # Where these bytes are, for as long as the caller has them.
    def address(bytes)
      [bytes].pack("p").unpack1("J")
    end

    def can_map?
      nothing, private_anonymous = 0, 0x22
      call("munmap", call("mmap", 0, PAGE_BYTES, nothing, private_anonymous, -1, 0), PAGE_BYTES)
      true
    rescue SystemCallError
      false
    end
  end

  class Parent
    # The one request there is: a Fork.
    REQUEST = "\x00\x00\x00\x02\x1a\x00".b

    def initialize(facts)
      @system = System.new(facts)
    end

    # Forks a host at every request, until the runner is gone.
    def serve
      @system.shield
      warm
      mapped_bytes = @system.address_space_bytes
      runner = Process.ppid
      control = UNIXSocket.for_fd(SOCKET)
      control.autoclose = false
      loop do
        descriptors = next_request(control)
        pid, error = forked
        break become_host(runner, descriptors) unless pid

        descriptors.each(&:close)
        answer = Frames.data(Frames::FORKED, Frames.number(1, pid) + Frames.number(2, error))
        control.write([answer.bytesize].pack("N") + answer)
      end
      @system.confine
      serve_program(mapped_bytes)
    end

    private

    # Requires what programs require, and goes the way that any program goes. Leaves nothing behind.
    def warm
      OFTEN_REQUIRED.each do |name|
        require name
      rescue LoadError
        # This interpreter has no such library.
      end
      RubyVM::InstructionSequence.compile("[1].map { |n| n.to_s }", "warm", "warm", 1).eval
      Values.write(Values.read('{"warm": [1, 2.5, null, "x"]}'))
      DidYouMean::SpellChecker.new(dictionary: ["warm"]).correct("wram")
      Process.respond_to?(:warmup) ? Process.warmup : GC.start
    end

    def next_request(control)
      request, _, _, rights = control.recvmsg(REQUEST.bytesize, scm_rights: true)
      Process.exit!(0) if request.empty?
      descriptors = rights ? rights.unix_rights : []
      return descriptors if request == REQUEST && descriptors.size == 3

      abort("a warm parent was asked for something else than a host")
    end

    # Forks a grandchild, whom its own parent leaves to the runner: nothing in it; in this process its number
    # and the error's.
    def forked
      reader, writer = IO.pipe
      middle = fork
      unless middle
        leave_host(writer)
        return nil
      end
      writer.close
      pid = reader.read(4)
      Process.wait(middle)
      pid ? [pid.unpack1("l"), 0] : [0, Errno::EAGAIN::Errno]
    rescue SystemCallError => error
      [0, error.errno]
    ensure
      [reader, writer].compact.each(&:close)
    end

    # Forks the host, tells its number and ends. It returns in the host alone.
    def leave_host(writer)
      host = fork or return
      writer.write([host].pack("l"))
      Process.exit!(0)
    rescue SystemCallError
      # Without a number the warm parent knows.
      Process.exit!(1)
    end

    # A session of its own, death with the runner, and the descriptors where a host looks for them.
    def become_host(runner, descriptors)
      # Its parent is about to end.
      waited = 0
      until Process.ppid == runner
        Process.exit!(1) if (waited += 1) > 10_000
        sleep(0.0001)
      end
      Process.setsid
      @system.die_with_parent
      Process.exit!(1) if Process.ppid != runner
      # Received descriptors come after the control socket, so none is at its place yet.
      # Both outputs go one way, so that what is written to them keeps its order.
      socket, output, = descriptors
      { socket => SOCKET, output => 1 }.each { |from, place| @system.duplicate(from.fileno, place) }
      @system.duplicate(1, 2)
      descriptors.each(&:close)
    end

    def serve_program(mapped_bytes)
      channel = Channel.new
      channel.send(Frames::READY, Frames.data(1, "CRuby #{RUBY_VERSION}"))
      kind, message = channel.receive.first until kind
      Process.exit!(1) unless kind == Frames::START
      Host.new(@system, channel, Start.new(message)).run(mapped_bytes)
    end
  end
end
