# From an exception to what the program's author reads: the class, the message, the place in the author's own
# source, and the author's own frames.

# A tool call failed: `tool`, `call` (its number), `code`, `message`, `retryable`.
class ToolError < StandardError
  attr_reader :code, :tool, :call, :retryable

  alias retryable? retryable

  def initialize(message = nil, code: "tool_error", tool: "", call: 0, retryable: false)
    super(message)
    @code, @tool, @call, @retryable = code, tool, call, retryable
  end
end

module Seance
  module Errors
    # Messages and traces are cut here; what a program raises can be as long as its memory.
    MESSAGE_CHARS_MAX = 16 * 1024
    FRAMES_MAX = 32
    DEADLOCK = "the program waits for something that can never happen: every thread sleeps and no tool call is left"

    module_function

    # A ProgramError frame.
    def failure(code, message, error_class: "", line: 0, column: 0, backtrace: "")
      [
        Frames.data(1, code), Frames.data(2, cut(message)), Frames.data(3, cut(error_class)),
        Frames.number(4, line), Frames.number(5, column), Frames.data(6, cut(backtrace))
      ].join
    end

    # The failure that an uncaught exception is. What the source looks like stands before its message.
    def describe(error, source_name, memory_bytes, looks)
      frames = author_frames(error, source_name)
      line = frames.first ? frames.first[/\A.*?:(\d+)/, 1].to_i : 0
      code = code_of(error)
      message = { "memory_limit" => "used more than #{memory_bytes} bytes of memory", "deadlock" => DEADLOCK }
      failure(
        code, message.fetch(code) { looks + text_of(error) },
        error_class: code == "deadlock" ? "" : name_of(error), line: line, column: column_of(error, source_name),
        backtrace: frames.join("\n")
      )
    end

    # The frames in the author's source, innermost first, the first of them at most.
    def author_frames(error, source_name)
      own = Array(error.backtrace).lazy.select { |frame| frame.start_with?("#{source_name}:") }
      own.map { |frame| frame.sub("<compiled>", "<main>") }.first(FRAMES_MAX)
    rescue StandardError
      []
    end

    # Where in its line the author's innermost frame stands, where the interpreter can tell.
    def column_of(error, source_name)
      frame = error.backtrace_locations&.find { |each| each.path == source_name }
      return 0 unless frame

      RubyVM::AbstractSyntaxTree.of(frame, keep_script_lines: true).first_column + 1
    rescue StandardError
      0
    end

    # The place of a syntax error, which its message has: the line, the column and the words. The caret under
    # the line stands at the column.
    def place_of(error, source_name)
      first, *rest = error.message.lines(chomp: true)
      _, line, words = *first.match(/\A#{Regexp.escape(source_name)}:(\d+): (?:syntax error, )?(.*)\z/m)
      caret = rest.find { |each| each.match?(/\A\s*[~^]+\s*\z/) }
      [line.to_i, caret ? caret.index(/[\^]/).to_i + 1 : 0, words || first.to_s]
    end

    def code_of(error)
      case error
      when NoMemoryError then "memory_limit"
      when ProgramError then error.code
      when ToolError then error.code == "call_limit" ? "call_limit" : "exception"
      else error.class.name == "fatal" ? "deadlock" : "exception"
      end
    end

    def name_of(error)
      error.class.name.to_s.delete_prefix("Seance::")
    end

    def text_of(error)
      error.message.to_s
    rescue Exception
      ""
    end

    def cut(text)
      text = Values.plain(text)
      text.length <= MESSAGE_CHARS_MAX ? text : "#{text[0, MESSAGE_CHARS_MAX]}…"
    end
  end
end
