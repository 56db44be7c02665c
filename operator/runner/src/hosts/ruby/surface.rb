# What a program finds beside its tools: what its session keeps, and the methods that it may call anywhere.
module Seance
  # What programs of a session keep: JSON values by key, bounded in bytes.
  class Store
    def initialize(host, kept, bytes_max)
      @host, @kept, @bytes_max = host, kept.dup, bytes_max
      @changed = {}
      @bytes = kept.sum { |key, text| size(key, text) }
    end

    def get(key, default = nil)
      text = @kept[checked(key)]
      text ? Values.read(text) : default
    end

    alias [] get

    def set(key, value)
      key, text = checked(key), @host.write(value)
      before = @kept.key?(key) ? size(key, @kept[key]) : 0
      n_bytes = @bytes - before + size(key, text)
      if @bytes_max.positive? && n_bytes > @bytes_max
        raise ProgramError.new("the store may hold #{@bytes_max} bytes", "store_limit")
      end
      @bytes = n_bytes
      @kept[key] = text
      @changed[key] = true
      value
    end

    alias []= set

    # Forgets a value; false when there was none.
    def delete(key)
      text = @kept.delete(checked(key)) or return false
      @bytes -= size(key, text)
      @changed[key] = true
    end

    def keys
      @kept.keys.sort
    end

    # What is to be kept, and the keys that are to be removed.
    def changes
      kept, removed = @changed.keys.partition { |key| @kept.key?(key) }
      [@kept.slice(*kept), removed]
    end

    def inspect
      "#<store>"
    end

    private

    def checked(key)
      raise TypeError, "a key of the store is text" unless key.is_a?(String) || key.is_a?(Symbol)

      Values.plain(key.to_s)
    end

    def size(key, text)
      key.bytesize + text.bytesize
    end
  end

  # The program's methods, on every object, as those of Kernel are.
  module Surface
    SLEEP = Kernel.instance_method(:sleep)

    def self.install(host, start)
      tools, store = Tools.new(host, start.tools), host.store
      define = lambda do |name, &body|
        Kernel.send(:define_method, name, &body)
        Kernel.send(:private, name)
      end
      define.call(:tools) { tools }
      define.call(:store) { store }
      define.call(:text) { |value| $stdout.write(value.to_s) && nil }
      define.call(:finish) { |value = nil| host.finish(value) }
      define.call(:sleep) { |*duration| host.sleep(*duration) }
      Kernel.define_singleton_method(:sleep) { |*duration| host.sleep(*duration) }
      constants(start)
    end

    def self.constants(start)
      tools = start.tools.map { |_, name, description| { "name" => name, "description" => description }.each_value(&:freeze).freeze }
      Object.const_set(:ALL_TOOLS, tools.freeze)
      inputs = start.inputs && Values.read(start.inputs).freeze
      Object.const_set(:INPUTS, inputs)
      Object.const_set(:FRAME, inputs) if start.inputs
    end
  end
end
