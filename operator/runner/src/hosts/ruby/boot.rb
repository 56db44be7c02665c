# Starts the host: loads its files, which are arguments of this process, each a name and a source, and hands
# over to the warm parent. What they need to know comes before them, as JSON.
require "json"

facts, *parts = ARGV.dup
ARGV.clear
# Frames of such a name are nobody's to see.
parts.each_slice(2) { |name, source| eval(source, TOPLEVEL_BINDING.dup, "<internal:#{name}>", 1) }
# Its own code finds the module from within; programs have no name for it.
Object.send(:remove_const, :Seance)::Parent.new(JSON.parse(facts)).serve
