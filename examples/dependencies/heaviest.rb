# Which of this repository's dependencies bring the most code, and who wants them? The program of heaviest.ts, in Ruby.

packages = tools.list_packages
foreign = packages.reject { |package| package["ours"] }

sizes = tools.parallel(
  foreign.map { |package| -> { tools.package_size(name: package["name"], version: package["version"]) } }
)
measured = foreign.zip(sizes).select { |_, lines| lines }
heaviest = measured.max_by(8) { |_, lines| lines }
twice = foreign.map { |package| package["name"] }.tally.select { |_, n| n > 1 }.keys

puts "#{packages.size - foreign.size} packages of ours stand on #{foreign.size} from elsewhere."
puts "The heaviest of the #{measured.size} that are unpacked here:"
heaviest.each do |package, lines|
  wanted_by = packages.select { |other| other["dependencies"].include?(package["name"]) }.map { |other| other["name"] }
  puts "  #{lines.to_s.rjust(8)} lines  #{package["name"]} #{package["version"]}, wanted by #{wanted_by.first(4).join(", ")}"
end
puts "In more than one version: #{twice.empty? ? "none" : twice.join(", ")}"

{ packages: foreign.size, heaviest: heaviest.map { |package, _| package["name"] }, twice: twice }
