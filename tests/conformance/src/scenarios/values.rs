//! Values and artifacts: cuts, blobs, and bytes that must be nowhere else.

use anyhow::{Context as _, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use seance_proto::prost::Message as _;
use seance_proto::v1alpha1 as api;
use serde_json::Value;

use super::{Stage, expect, program, source, streamed, waiting};
use crate::case::{Case, Step};
use crate::fixtures::PIC;
use crate::live::Live;

/// The first bytes of every PNG in Base64.
const PNG_BASE64: &str = "iVBORw0KGgo";
/// The first bytes of every PNG.
const PNG: &[u8] = b"\x89PNG\r\n";

/// Values that one run gives to each language.
const RANDOM_VALUES: usize = 60;

/// Issue 5: random values mean the same in every language. As inputs, through a tool and as the program's value
/// each comes back as the JSON that JavaScript makes of it.
pub async fn random_values(stage: Stage) -> anyhow::Result<()> {
    let seed = stage.target.seed;
    let mut random = StdRng::seed_from_u64(seed);
    let text = Value::from_iter((0..RANDOM_VALUES).map(|_| random_value(&mut random, 4))).to_string();
    let program = match stage.language.as_str() {
        "python" => "return [INPUTS, await tools.echo(value=INPUTS)]",
        "ruby" => "return [INPUTS, tools.echo(value: INPUTS)]",
        other => bail!("there is no program in {other}"),
    };
    let own = valued(&stage, program, &text).await?;
    let reference = Stage { language: "javascript".to_owned(), ..stage.clone() };
    let reference = Stage { case: Case { engine: None, ..stage.case }, ..reference };
    let expected = valued(&reference, "return [INPUTS, await tools.echo({value: INPUTS})]", &text).await?;
    let at = own.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let near = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(30)..])
            .chars()
            .take(60)
            .collect::<String>()
    };
    ensure!(own == expected, "seed {seed}: {:?} is {:?} in JavaScript", near(&own), near(&expected));
    Ok(())
}

/// The value of this program with these inputs.
async fn valued(stage: &Stage, text: &str, inputs: &str) -> anyhow::Result<String> {
    let mut value = None;
    stage
        .with_session(async |live| {
            let seen = live.execute(&Step { inputs: Some(inputs.to_owned()), ..source(text) }).await?;
            value = program(&seen)?.value_json.clone();
            Ok(())
        })
        .await?;
    value.with_context(|| format!("{text} has no value"))
}

/// Keys are never such as JavaScript puts in another order.
fn random_value(random: &mut StdRng, depth: u32) -> Value {
    match random.random_range(if depth == 0 { 2..8 } else { 0..8 }) {
        0 => Value::from_iter((0..random.random_range(0..5)).map(|_| random_value(random, depth - 1))),
        1 => Value::from_iter((0..random.random_range(0..5)).map(|_| {
            let key = format!("k{}", random_text(random));
            (key, random_value(random, depth - 1))
        })),
        2 => random_text(random).into(),
        3 => random.random::<i64>().into(),
        4 => random.random_range(-1_000_000_i64..1_000_000).into(),
        5 => {
            let double = f64::from_bits(random.random());
            if double.is_finite() { double.into() } else { 0.5.into() }
        }
        6 => (random.random_range(-1e9..1e9_f64) / 1000.0).into(),
        _ => [Value::Null, true.into(), false.into()][random.random_range(0..3)].clone(),
    }
}

fn random_text(random: &mut StdRng) -> String {
    let kinds = ['\0'..='\u{20}', '!'..='\u{7f}', '\u{80}'..='\u{2fff}', '\u{10000}'..='\u{1f6ff}'];
    let n = random.random_range(0..8);
    let any = |_| {
        let kind = kinds[random.random_range(0..kinds.len())].clone();
        random.random_range(kind)
    };
    (0..n).map(any).collect()
}

/// Case 69, P12: a value over its budget.
pub async fn value_cut(mut stage: Stage) -> anyhow::Result<()> {
    stage.case.limits.insert("value_view_bytes".to_owned(), 1024);
    stage
        .with_session(async |live| {
            let text = "return Array.from({length: 1000}, (_, i) => i)";
            let seen = live.execute(&source(text)).await?;
            expect(text, &seen, |_| {})?;
            let whole: Vec<u64> = (0..1000).collect();
            let whole = serde_json::to_string(&whole)?;
            let first = check_cut(live, program(&seen)?, &whole).await?;
            let kept: Vec<Value> = serde_json::from_str(&first).context("the cut value")?;
            let (marker, items) = kept.split_last().context("the cut value is empty")?;
            let marker = marker.as_str().context("the cut value's last item is no notice")?;
            let missing: usize = marker.chars().filter(char::is_ascii_digit).collect::<String>().parse()?;
            ensure!(
                items.len() + missing == 1000 && items.iter().enumerate().all(|(i, item)| *item == i),
                "{} items are kept and {missing} are said to be missing, of 1000",
                items.len()
            );
            for again in [live.program(&waiting(1), 1).await, live.wait(&waiting(1)).await?] {
                let json = program(&again)?.value_json.clone().unwrap_or_default();
                ensure!(json == first, "read again the value is {json:?}, it was {first:?}");
            }
            let text = r#"return {long: "y".repeat(5000), list: Array(500).fill([1]), n: 9007199254740993n}"#;
            let seen = live.execute(&source(text)).await?;
            let list = vec!["[1]"; 500].join(",");
            let long = "y".repeat(5000);
            let whole = format!(r#"{{"long":"{long}","list":[{list}],"n":9007199254740993}}"#);
            check_cut(live, program(&seen)?, &whole).await.map(|_| ())
        })
        .await
}

/// Checks a cut value against the whole and gives the cut text back.
async fn check_cut(live: &Live, program: &api::Program, whole: &str) -> anyhow::Result<String> {
    let json = program.value_json.clone().context("there is no value")?;
    let cut = program.value_cut.as_ref().with_context(|| format!("the value isn't cut: {json:.80}"))?;
    ensure!(
        cut.original_bytes == whole.len() as u64,
        "original_bytes is {}, expected {}",
        cut.original_bytes,
        whole.len()
    );
    ensure!(json.len() < whole.len(), "the cut value has {} bytes", json.len());
    serde_json::from_str::<Value>(&json).with_context(|| format!("the cut value is no JSON: {json:.200}"))?;
    let (bytes, media_type) = live.blob(&cut.blob_id).await?;
    ensure!(media_type == "application/json", "the whole value's media type is {media_type:?}");
    ensure!(bytes == whole.as_bytes(), "the blob isn't the whole value: {} bytes", bytes.len());
    Ok(json)
}

/// Case 21, P11: a large string as the value; between tools it flows whole.
pub async fn value_blob(stage: Stage) -> anyhow::Result<()> {
    long_value(stage, 5_000_000).await
}

/// P14.
pub async fn value_blob_of_20_mib(stage: Stage) -> anyhow::Result<()> {
    long_value(stage, 20 << 20).await
}

async fn long_value(stage: Stage, length: usize) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let text = format!(
                "const long = 'x'.repeat({length}); const back = await tools.echo({{value: long.slice(0, 200000)}}); \
                 text(back.length); return long"
            );
            let seen = live.execute(&source(text)).await?;
            expect("a long value", &seen, |e| e.output = Some("200000".to_owned()))?;
            let whole = format!("\"{}\"", "x".repeat(length));
            check_cut(live, program(&seen)?, &whole).await?;
            let records = live.provider.as_ref().context("no provider")?.records();
            let wanted = format!(r#"{{"value":"{}"}}"#, "x".repeat(200_000));
            ensure!(
                records.len() == 1 && records[0].arguments == wanted,
                "the tool got {} bytes, expected {}",
                records.first().map_or(0, |record| record.arguments.len()),
                wanted.len()
            );
            Ok(())
        })
        .await
}

/// Case 72, P21: an artifact's bytes are in its blob and nowhere else.
pub async fn picture(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let seen = live.execute(&source("const r = await tools.pic(); text(r); return r")).await?;
            expect("the picture's program", &seen, |e| {
                e.value = Some(r#"{"ok":true}"#.to_owned());
                e.output = Some(r#"{"ok":true}"#.to_owned());
                e.artifacts = Some(vec!["pic.png image/png 1024".to_owned()]);
            })?;
            let found = program(&seen)?;
            ensure!(found.artifacts.len() == 1, "the program has {} artifacts", found.artifacts.len());
            let artifact = &found.artifacts[0];
            let is_logical =
                artifact.blob_id.starts_with("blob_") && !artifact.blob_id.contains(['/', '.', '\\']);
            ensure!(is_logical, "the artifact's reference is {:?}", artifact.blob_id);
            let (bytes, media_type) = live.blob(&artifact.blob_id).await?;
            ensure!(
                bytes == PIC && media_type == "image/png",
                "the blob is another: {media_type} {}",
                bytes.len()
            );
            no_picture(
                "the observation",
                &seen.observation.as_ref().map(|o| o.encode_to_vec()).unwrap_or_default(),
            )?;
            no_picture("the output", &streamed(&seen))?;
            for event in live.events().await? {
                no_picture("an event", &event.encode_to_vec())?;
            }
            if let Some(log) = &stage.target.log {
                no_picture("the service's log", &std::fs::read(log)?)?;
            }
            Ok(())
        })
        .await
}

fn no_picture(what: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let holds = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    ensure!(!holds(PNG) && !holds(PNG_BASE64.as_bytes()), "{what} holds the picture's bytes");
    Ok(())
}

/// P5: equal artifacts are one blob, others aren't.
pub async fn equal_artifacts(mut stage: Stage) -> anyhow::Result<()> {
    let leaves = |name: &str, bytes| crate::case::Tool {
        name: format!("leave_{name}_{bytes}"),
        leaves: vec![crate::case::Leaves {
            name: name.to_owned(),
            media_type: "text/plain".to_owned(),
            bytes,
        }],
        ..crate::case::Tool::default()
    };
    stage.case.tools = vec![leaves("a", 10), leaves("b", 10), leaves("a", 11)];
    stage
        .with_session(async |live| {
            let text = "for (const tool of [tools.leave_a_10, tools.leave_a_10, tools.leave_b_10, tools.leave_a_11]) await tool({})";
            let seen = live.execute(&source(text)).await?;
            expect(text, &seen, |_| {})?;
            let ids: Vec<&str> = program(&seen)?.artifacts.iter().map(|a| a.blob_id.as_str()).collect();
            ensure!(ids.len() == 4, "{} artifacts instead of 4", ids.len());
            ensure!(ids[0] == ids[1], "equal bytes with equal metadata are kept twice: {ids:?}");
            ensure!(ids[2] != ids[0] && ids[3] != ids[0] && ids[2] != ids[3], "others share a blob: {ids:?}");
            Ok(())
        })
        .await
}

/// L6: text of two and three bytes a character, around the lengths where frames and varints turn.
pub async fn lengths(stage: Stage) -> anyhow::Result<()> {
    const LENGTHS: &[usize] =
        &[0, 1, 62, 63, 64, 126, 127, 128, 255, 256, 8191, 8192, 32766, 32767, 32768, 65536];
    stage
        .with_session(async |live| {
            let text = format!(
                "for (const n of {LENGTHS:?}) {{ const s = 'é'.repeat(n) + '漢'; \
                 if (await tools.echo({{value: s}}) !== s) throw new Error('changed at ' + n); text(s) }} return '漢é'"
            );
            let seen = live.execute(&source(text)).await?;
            expect("text of every length", &seen, |e| e.value = Some("\"漢é\"".to_owned()))?;
            let texts: Vec<String> = LENGTHS.iter().map(|n| format!("{}漢", "é".repeat(*n))).collect();
            ensure!(streamed(&seen) == texts.join("\n").as_bytes(), "the streamed output isn't what was written");
            let records = live.provider.as_ref().context("no provider")?.records();
            for (record, text) in records.iter().zip(&texts) {
                ensure!(record.arguments == format!(r#"{{"value":"{text}"}}"#), "the tool got something else");
            }
            ensure!(records.len() == LENGTHS.len(), "{} calls were recorded", records.len());
            Ok(())
        })
        .await
}
