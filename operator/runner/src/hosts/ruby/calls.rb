# Tool calls, as a program makes them and waits for them.
module Seance
  # A call that is under way.
  class Call
    attr_reader :number, :tool, :error

    def initialize(number, tool)
      @number, @tool, @is_settled = number, tool, false
    end

    def settled?
      @is_settled
    end

    # Takes the answer: the value's JSON text, or an error.
    def settle(json, error)
      @json, @error, @is_settled = json, error, true
    end

    def value
      raise @error if @error

      Values.read(@json)
    end
  end

  # One of the callables that run side by side. It is resumed when it may go on.
  class Task
    def initialize(host, index, callable)
      @host, @index = host, index
      @fiber = Fiber.new { callable.call }
      @may_go_on, @until = -> { true }, nil
    end

    attr_reader :index, :until, :value

    def may_go_on?
      @may_go_on.call || (@until && @host.now >= @until)
    end

    # Goes on to where it waits, or to its end: then it is true.
    def resume
      waiting = @host.as_task(@fiber) { @fiber.resume }
      if @fiber.alive?
        @may_go_on, @until, @call = *waiting
        return false
      end
      @value = waiting
      true
    end

    # Gives up what it waits for.
    def abandon
      @host.cancel(@call) if @call
    end
  end

  # Runs callables side by side, so many at most at one time; the next starts as soon as one has ended. After a
  # failure none is started any more, those under way are finished, and the first failure is raised.
  class Parallel
    AT_ONCE_MAX = 64

    def initialize(host, callables)
      @host, @tasks = host, []
      @left = callables.each_with_index.map { |callable, index| Task.new(host, index, callable) }
      @values = Array.new(callables.size)
      @failure = nil
    end

    def run
      loop do
        start while @tasks.size < AT_ONCE_MAX && !@left.empty? && !@failure
        break if @tasks.empty?

        @host.wait(@tasks.filter_map(&:until).min) { @tasks.any?(&:may_go_on?) }
        @tasks.select(&:may_go_on?).each { |task| step(task) }
      end
      raise @failure if @failure

      @values
    ensure
      @tasks.each(&:abandon)
    end

    private

    def start
      @tasks << @left.shift
      step(@tasks.last)
    end

    def step(task)
      return unless task.resume

      @tasks.delete(task)
      @values[task.index] = task.value
    rescue Exception => error
      raise unless @tasks.delete(task)

      @failure ||= error
    end
  end

  # The tools by alias and by their own names. Any other name is a method too, whose call fails like one of an
  # unknown tool: the attempt is the broker's to count and to answer.
  class Tools < BasicObject
    ABSENT = ::Object.new

    def initialize(host, tools)
      @host = host
      @known = tools.to_h { |name, alias_, _| [alias_, name] }.merge(tools.to_h { |name, _, _| [name, name] })
      ::Kernel.instance_method(:freeze).bind_call(self)
    end

    # Calls a tool by any of its names.
    def call(name, arguments = ABSENT, **keywords)
      name = name.to_s
      short = name.delete_prefix("tools.")
      @host.call(@known[name] || @known.fetch(short, short), together(arguments, keywords))
    end

    # Runs callables side by side and gives their results in that order.
    def parallel(*callables)
      callables = callables.first if callables.size == 1 && callables.first.is_a?(::Array)
      callables.each do |each|
        each.respond_to?(:call) || ::Kernel.raise(::ArgumentError, "parallel takes callables, such as -> { tools.name }")
      end
      @host.parallel(callables)
    end

    def method_missing(name, arguments = ABSENT, **keywords)
      call(name, arguments, **keywords)
    end

    def public_send(name, *arguments, **keywords)
      __send__(name, *arguments, **keywords)
    end

    alias send public_send

    def respond_to?(name, _private = false)
      @known.key?(name.to_s) || %w[call parallel].include?(name.to_s)
    end

    def methods
      @known.keys.map(&:to_sym) + %i[call parallel]
    end

    def inspect
      "#<tools>"
    end

    alias to_s inspect

    private

    # The arguments of a call. What is no object is the broker's to refuse, as an attempt.
    def together(arguments, keywords)
      return keywords if ABSENT.equal?(arguments)
      return arguments if keywords.empty?
      return arguments.merge(keywords) if ::Hash === arguments

      ::Kernel.raise(::ArgumentError, "a tool takes keywords, or one hash")
    end
  end
end
