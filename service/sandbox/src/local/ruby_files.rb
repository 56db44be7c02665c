# Prints the version of the interpreter that runs this, and then the files and folders that it needs, each on a
# line: its standard library, what was installed for it, the time zones, and the shared libraries of its
# extension modules.
require "rbconfig"

# The shared libraries of this process, by all names that they have: the loader looks for another than it shows.
def libraries
  shown = File.foreach("/proc/self/maps").filter_map { |line| line[%r{(/\S+\.so\S*)$}, 1] }.uniq
  others = shown.map { |path| File.dirname(path) }.uniq.flat_map { |folder| Dir["#{folder}/*.so*"] }
  shown | others.select { |path| File.symlink?(path) && File.exist?(path) && shown.include?(File.realpath(path)) }
end

puts RUBY_VERSION
folders = ($LOAD_PATH + Gem.path).select { |path| path.is_a?(String) && File.directory?(path) }
# A folder within another is there with it.
folders = folders.uniq.reject { |path| folders.any? { |other| path.start_with?("#{other}/") } }
archdir = RbConfig::CONFIG["rubyarchdir"]
Dir["#{archdir}/**/*.#{RbConfig::CONFIG["DLEXT"]}"].sort.each do |file|
  require file
rescue LoadError, StandardError
  # It lacks something here, in a sandbox too.
end
puts folders.sort
puts Dir["/usr/share/zoneinfo"]
puts libraries.reject { |path| folders.any? { |folder| path.start_with?("#{folder}/") } }
