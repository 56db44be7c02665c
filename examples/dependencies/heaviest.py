# Which of this repository's dependencies bring the most code, and who wants them? The program of heaviest.ts, in Python.
import asyncio
from collections import Counter

packages = await tools.list_packages()
foreign = [package for package in packages if not package["ours"]]

sizes = await asyncio.gather(
    *(tools.package_size(name=package["name"], version=package["version"]) for package in foreign)
)
measured = [(lines, package) for lines, package in zip(sizes, foreign) if lines is not None]
heaviest = sorted(measured, key=lambda pair: -pair[0])[:8]
twice = [name for name, n in Counter(package["name"] for package in foreign).items() if n > 1]

print(f"{len(packages) - len(foreign)} packages of ours stand on {len(foreign)} from elsewhere.")
print(f"The heaviest of the {len(measured)} that are unpacked here:")
for lines, package in heaviest:
    wanted_by = [other["name"] for other in packages if package["name"] in other["dependencies"]]
    print(f"  {lines:8} lines  {package['name']} {package['version']}, wanted by {', '.join(wanted_by[:4])}")
print(f"In more than one version: {', '.join(twice) or 'none'}")

return {"packages": len(foreign), "heaviest": [package["name"] for _, package in heaviest], "twice": twice}
