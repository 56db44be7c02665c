# Ruby values to JSON text and back: the one rendering for arguments, values and the store.
#
# Integers are exact. A number with a whole value is written as an integer, as every language does here. Symbols
# are text. What JSON has no form for has one form, and the first place where it is used is remembered for a
# warning:
#
#     NaN, Infinity          "NaN", "Infinity", "-Infinity"
#     Time, DateTime, Date   ISO 8601 text; a time in UTC, to the millisecond
#     a hash                 an object when all keys are text or symbols, else an array of pairs
#     a Set                  an array
#     bytes                  Base64 text; bytes that are UTF-8 are text
#     an exception           {"name", "message"}
#     a Struct, an object    an object of its members
#     BigDecimal, Rational,
#     Pathname, URI          their text
require "json"
require "set"

module Seance
  # Arrays and objects may be nested this deep.
  DEPTH_MAX = 512
  # Longer integers are refused, as converting them takes more than linear time.
  DIGITS_MAX = 4300
  # No value, argument or text is longer, so that each fits in a frame.
  JSON_BYTES_MAX = 48 << 20
  # What is written as its text.
  TEXTUAL = %w[BigDecimal Rational Pathname URI::Generic].freeze
  # What is written as an object of its members.
  MEMBERED = %w[Struct OpenStruct Data].freeze

  # Something that this service can't do for a program; `code` says what.
  class ProgramError < StandardError
    attr_reader :code

    def initialize(message, code)
      super(message)
      @code = code
    end
  end

  module Values
    # A double that a double can hold.
    class Double
      def self.try_convert(text)
        value = text.to_f
        raise Values.number_limit unless value.finite?

        value
      end
    end

    module_function

    # The value of JSON text.
    def read(text)
      value = JSON.parse(text, max_nesting: 0, decimal_class: Double)
      check_digits(value) if text.bytesize > DIGITS_MAX && text.match?(/\d{#{DIGITS_MAX + 1}}/)
      value
    rescue JSON::ParserError
      raise ProgramError.new("the value is not valid JSON", "unserializable")
    rescue SystemStackError
      raise ProgramError.new("the value is nested too deep", "value_limit")
    end

    # JSON text of at most so many bytes. The block is told of a form that isn't the value's own.
    def write(value, bytes_max = JSON_BYTES_MAX, &note)
      Writer.new(bytes_max, note || ->(_) {}).write(value)
    end

    # The same text in UTF-8, with U+FFFD where there is none.
    def plain(text)
      text = text.encoding == Encoding::BINARY ? text.dup.force_encoding(Encoding::UTF_8) : text
      text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace, replace: "\u{fffd}").scrub("\u{fffd}")
    end

    def number_limit
      message = "a number has more than #{DIGITS_MAX} digits or is too large for a double"
      ProgramError.new(message, "number_limit")
    end

    def too_long(bytes_max)
      ProgramError.new("the value has more than #{bytes_max} bytes as JSON", "value_limit")
    end

    def too_many_digits?(integer)
      # Ten bits for three digits: only what may have too many is written to be counted.
      integer.bit_length > DIGITS_MAX * 3 && integer.abs.to_s.length > DIGITS_MAX
    end

    def check_digits(value)
      case value
      when Integer then raise number_limit if too_many_digits?(value)
      when Array then value.each { |item| check_digits(item) }
      when Hash then value.each_value { |item| check_digits(item) }
      end
    end
  end

  class Writer
    def initialize(bytes_max, note)
      @bytes_max, @note = bytes_max, note
      @out, @parents, @path = +"", [], []
    end

    def write(value)
      value(value)
      @out
    end

    private

    def add(text)
      @out << text
      raise Values.too_long(@bytes_max) if @out.bytesize > @bytes_max
    end

    def value(value)
      case value
      when nil then add("null")
      when true, false then add(value.to_s)
      when String then text(value)
      when Symbol then add(Values.plain(value.name).to_json)
      when Integer then integer(value)
      when Float then float(value)
      else nested(value)
      end
    end

    def text(text)
      if text.encoding == Encoding::BINARY && !text.dup.force_encoding(Encoding::UTF_8).valid_encoding?
        no_form("bytes")
        return add([text].pack("m0").to_json)
      end
      add(Values.plain(text).to_json)
    end

    def integer(value)
      raise Values.number_limit if Values.too_many_digits?(value)

      add(value.to_s)
    end

    def float(value)
      unless value.finite?
        word = value.nan? ? "NaN" : value.positive? ? "Infinity" : "-Infinity"
        no_form(word)
        return add(word.to_json)
      end
      add(decimal(value))
    end

    # A number as JavaScript writes it, so that every language writes the same.
    def decimal(value)
      mantissa, exponent = value.abs.to_s.split("e")
      whole, fraction = mantissa.split(".")
      written = whole + fraction
      digits = written.sub(/\A0+/, "")
      point = whole.size + exponent.to_i - (written.size - digits.size)
      digits = digits.sub(/0+\z/, "")
      return "0" if digits.empty?

      (value.negative? ? "-" : "") + placed(digits, point)
    end

    def placed(digits, point)
      n = digits.size
      if point.between?(n, 21)
        digits + "0" * (point - n)
      elsif point.between?(1, 21)
        "#{digits[0, point]}.#{digits[point..]}"
      elsif point.between?(-5, 0)
        "0.#{"0" * -point}#{digits}"
      else
        rest = n > 1 ? ".#{digits[1..]}" : ""
        format("%s%se%+d", digits[0], rest, point - 1)
      end
    end

    def nested(value)
      if @parents.any? { |parent| parent.equal?(value) }
        raise ProgramError.new("the value contains itself at #{place}", "unserializable")
      end
      if @parents.size >= DEPTH_MAX
        raise ProgramError.new("the value is nested more than #{DEPTH_MAX} deep at #{place}", "unserializable")
      end
      @parents.push(value)
      compound(value)
      @parents.pop
    end

    def compound(value)
      case value
      when Hash then mapping(value)
      when Array then array(value)
      when Set then array(with_form(value, "a set"))
      when Time then text(time(with_form(value, "a time")))
      when Exception
        mapping({ "name" => value.class.name, "message" => with_form(value, "an exception").message })
      else other(value)
      end
    end

    # Classes of libraries that need not be loaded.
    def other(value)
      names = value.class.ancestors.map(&:name)
      if names.include?("DateTime")
        text(time(with_form(value, "a time").to_time))
      elsif names.include?("Date")
        text(with_form(value, "a date").iso8601)
      elsif names.intersect?(TEXTUAL)
        text(with_form(value, "a #{value.class}").to_s)
      elsif names.intersect?(MEMBERED)
        mapping(value.to_h)
      else
        raise ProgramError.new("a value of class #{value.class} at #{place} has no form in JSON", "unserializable")
      end
    end

    def time(time)
      time.getutc.strftime("%Y-%m-%dT%H:%M:%S.%LZ")
    end

    def with_form(value, what)
      no_form(what)
      value
    end

    def array(items)
      add("[")
      items.each_with_index do |item, index|
        add(",") if index.positive?
        at(index, item)
      end
      add("]")
    end

    def mapping(hash)
      unless hash.each_key.all? { |key| key.is_a?(String) || key.is_a?(Symbol) }
        no_form("a hash whose keys are not text")
        return array(hash.to_a)
      end
      add("{")
      # A key counts once, whether text or symbol.
      hash.transform_keys { |key| Values.plain(key.to_s) }.each_with_index do |(key, item), index|
        add(",") if index.positive?
        add(key.to_json)
        add(":")
        at(key, item)
      end
      add("}")
    end

    def at(step, value)
      @path.push(step)
      value(value)
      @path.pop
    end

    def no_form(what)
      @note.call("#{what} at #{place} has no JSON form of its own")
    end

    # Such as $.items[2]["two words"].
    def place
      "$" + @path.map { |step| step.to_s.match?(/\A[A-Za-z_]\w*\z/) ? ".#{step}" : "[#{step.to_json}]" }.join
    end
  end
end
