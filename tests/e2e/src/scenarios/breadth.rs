//! The whole path once, before anything else is looked at.

use anyhow::ensure;

use crate::agent::catalog;
use crate::helm;
use crate::place::{Place, RELEASE, TENANTS};

/// Install, a warm pool, a session, a program with a tool call, close, `helm test`, uninstall.
pub async fn a_session_from_install_to_uninstall(place: &mut Place) -> anyhow::Result<()> {
    // `helm test` dials a name, and nothing resolves names on the test cluster: it gets an address.
    let mut values = place.values();
    let address = place.free_address().await?;
    values["api"] = serde_json::json!({ "service": { "clusterIP": address } });
    place.install(&values).await?;
    place.warm().await?;

    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.open(|request| request.catalog = catalog(&["double"])).await;
    let session = session.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    let provider = agent
        .provide(&session, |_, arguments| {
            let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap_or_default();
            Some((arguments["n"].as_i64().unwrap_or_default() * 2).to_string())
        })
        .await?;
    let source = "const n = await tools.double({ n: 21 }); text(`double: ${n}`); return n;";
    let seen = agent.run(&session, source).await?;
    ensure!(seen.value()? == "42", "the value is {:?}", seen.value());
    ensure!(seen.output == "double: 42", "the output is {:?}", seen.output);
    drop(provider);

    agent.close(&session).await?;
    place.nothing_is_leaked().await?;
    helm::helm(&["test", RELEASE, "--namespace", &place.namespace, "--timeout", "90s"]).await?;
    place.nothing_is_leaked().await?;
    place.uninstall().await
}
