//! Writes the definitions of the custom resources into `charts/seance-crds/templates`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(seance_operator_api::crds::FOLDER);
    std::fs::create_dir_all(&folder)?;
    for file in seance_operator_api::crds::files() {
        let path = folder.join(&file.name);
        std::fs::write(&path, &file.text)?;
        println!("{} {} bytes", file.name, file.text.len());
    }
    Ok(())
}
