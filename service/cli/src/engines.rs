//! `seance engines`.

use std::process::ExitCode;

use anyhow::Result;
use comfy_table::{Table, presets};
use seance_proto::v1alpha1 as proto;

use crate::args::{Connection, Engines};
use crate::client::Client;
use crate::tools_file::Tools;
use crate::{display, json};

/// Lists or describes engines.
pub async fn engines(connection: &Connection, command: Engines, as_json: bool) -> Result<ExitCode> {
    match command {
        Engines::List => list(&Client::connect(connection).await?, as_json).await?,
        Engines::Describe { engine, tools, options } => {
            let tools = tools.as_deref().map(Tools::read).transpose()?;
            let catalog = tools.map(|tools| proto::CatalogSource {
                source: Some(proto::catalog_source::Source::Inline(tools.catalog())),
            });
            let request = proto::DescribeRequest { engine, catalog, engine_options: options };
            let client = Client::connect(connection).await?;
            let described = client.engines.clone().describe(request).await?.into_inner();
            if as_json {
                json::print("DescribeResponse", &described)?;
            } else {
                display::say(described.instructions.trim_end())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, as_json: bool) -> Result<()> {
    let listed = client.engines.clone().list(proto::ListEnginesRequest {}).await?.into_inner();
    if as_json {
        return listed.engines.iter().try_for_each(|engine| json::print("Engine", engine));
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["ENGINE", "VERSION", "LANGUAGES", "OPTIONS", "NOTE"]);
    for engine in listed.engines {
        let (languages, options) = (engine.languages.join(", "), engine.options.join(", "));
        table.add_row([engine.name, engine.version, languages, options, engine.unavailable_reason]);
    }
    display::say(&table.to_string())
}
