// Which of this repository's dependencies bring the most code, and who wants them?
//
// Written the way a model would: a few hundred tool calls, a join and a sort, and only the answer
// comes out.

interface Package {
  name: string;
  version: string;
  ours: boolean;
  dependencies: string[];
}

const packages: Package[] = await tools.list_packages({});
const ours = packages.filter((pkg) => pkg.ours).map((pkg) => pkg.name);
const foreign = packages.filter((pkg) => !pkg.ours);

const sizes = await Promise.all(
  foreign.map(async ({ name, version }) => ({
    name,
    version,
    lines: (await tools.package_size({ name, version })) as number | null,
  })),
);

const wantedBy = (name: string) =>
  packages.filter((pkg) => pkg.dependencies.includes(name)).map((pkg) => pkg.name);

const measured = sizes.filter((size) => size.lines !== null);
const heaviest = measured.sort((a, b) => b.lines! - a.lines!).slice(0, 8);
const names = foreign.map((pkg) => pkg.name);
const twice = [...new Set(names.filter((name, index) => names.indexOf(name) !== index))];

text(`${ours.length} packages of ours stand on ${foreign.length} from elsewhere.`);
text(`The heaviest of the ${measured.length} that are unpacked here:`);
for (const { name, version, lines } of heaviest) {
  text(`  ${String(lines).padStart(8)} lines  ${name} ${version}, wanted by ${wantedBy(name).slice(0, 4).join(", ")}`);
}
text(`In more than one version: ${twice.join(", ") || "none"}`);

return { packages: foreign.length, heaviest: heaviest.map((pkg) => pkg.name), twice };
