# The frames of seance.host.v1alpha1 (host.proto), and the private socket they travel over.
#
# Each is a 4-byte big-endian length and a protobuf message. These few messages are written and read by hand:
# a host has nothing but the standard library.
module Seance
  FRAME_BYTES_MAX = 64 << 20
  READ_BYTES = 64 << 10
  # Where a host and its warm parent find their socket.
  SOCKET = 3

  module Frames
    # The numbers of the frames a host sends, and of those it gets.
    READY, TOOL_CALL, CANCEL_CALL, ENDED, FORKED = 1, 3, 4, 5, 6
    START, CALL_RESULT = 1, 2

    module_function

    def varint(number)
      out = "".b
      while number > 0x7f
        out << (number & 0x7f | 0x80)
        number >>= 7
      end
      out << number
    end

    # A field with a number; nothing for 0, as protobuf has it.
    def number(field, value)
      value.zero? ? "".b : varint(field << 3) + varint(value)
    end

    # A field with bytes, text or a message.
    def data(field, value)
      varint(field << 3 | 2) + varint(value.bytesize) + value.b
    end

    # The fields of a message: their numbers, each with a number or bytes.
    def fields(message)
      found, at = [], 0
      read = lambda do
        value = shift = 0
        loop do
          byte = message.getbyte(at) or raise ArgumentError, "a message that is cut off"
          at += 1
          value |= (byte & 0x7f) << shift
          break value if byte < 0x80

          shift += 7
        end
      end
      while at < message.bytesize
        key = read.call
        value = read.call
        if key & 7 == 2
          value, at = message.byteslice(at, value), at + value
        elsif key & 7 != 0
          raise ArgumentError, "a field of an unknown kind"
        end
        found << [key >> 3, value]
      end
      found
    end

    # The first fields of a message, all of which are text.
    def texts(message, n)
      found = fields(message).to_h
      (1..n).map { |field| text(found.fetch(field, "")) }
    end

    def text(bytes)
      bytes.dup.force_encoding(Encoding::UTF_8)
    end
  end

  # The socket, with what was read from it and is no whole frame yet.
  class Channel
    def initialize
      @in = IO.for_fd(SOCKET, "rb", autoclose: false)
      @out = IO.for_fd(SOCKET, "wb", autoclose: false)
      @buffer = "".b
    end

    # Sends a frame; waits until the runner takes it. Without a runner nobody can be told.
    def send(kind, message)
      body = Frames.data(kind, message)
      rest = [body.bytesize].pack("N") << body
      rest = rest.byteslice(@out.syswrite(rest)..) until rest.empty?
    rescue SystemCallError, IOError
      Process.exit!(1)
    end

    # The frames that are there, each a number and a message, waiting for the first; none when none comes in
    # time, in seconds.
    def receive(timeout = nil)
      frames = taken
      return frames unless frames.empty?
      return [] unless Thread.handle_interrupt(Object => :immediate) { IO.select([@in], nil, nil, timeout) }

      @buffer << @in.sysread(READ_BYTES)
      taken
    rescue EOFError
      Process.exit!(0)
    rescue SystemCallError
      Process.exit!(1)
    end

    private

    def taken
      frames = []
      while @buffer.bytesize >= 4
        length = @buffer.unpack1("N")
        Process.exit!(1) if length > FRAME_BYTES_MAX
        break if @buffer.bytesize < 4 + length

        frames << Frames.fields(@buffer.byteslice(4, length)).first
        @buffer = @buffer.byteslice(4 + length..)
      end
      frames
    end
  end

  # HostLimits.
  Limits = Struct.new(
    :cpu_ms, :turn_ms, :memory_bytes, :pending_calls, :value_bytes, :kept_bytes, :detect_deadlock, :output_bytes
  ) do
    def self.read(message)
      values = Array.new(members.size, 0)
      Frames.fields(message).each { |field, value| values[field - 1] = value if field <= values.size }
      new(*values)
    end
  end

  # The program and all it is run with.
  class Start
    attr_reader :source, :source_name, :inputs, :tools, :kept, :limits

    def initialize(message)
      @source, @source_name, @inputs = "", "", nil
      @tools, @kept, @limits = [], {}, Limits.read("")
      Frames.fields(message).each { |field, value| take(field, value) }
    end

    private

    def take(field, value)
      case field
      when 3 then @source = Frames.text(value)
      when 4 then @source_name = Frames.text(value)
      when 5 then @tools << Frames.texts(value, 3)
      when 6 then @inputs = Frames.text(value)
      when 7 then @kept.store(*Frames.texts(value, 2))
      when 8 then @limits = Limits.read(value)
      end
    end
  end
end
