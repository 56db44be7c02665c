//! Suites that run elsewhere against local sandboxes, run again with pods: the acceptance lists, and the
//! attempts to leave the sandbox.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::json;
use tokio::process::Command;

use super::edges::ample_processor;
use crate::agent::Agent;
use crate::place::{POOL, Place, TENANTS, pool};

/// The whole of the acceptance lists may take so long: each session needs a pod.
const LISTS_WITHIN: Duration = Duration::from_secs(1700);

/// Lines of the acceptance lists whose ways are others with a pod than with a local process: frames that
/// are cut into chunks, limits that the pod has, ends and clean-up, what a program may see of its machine.
const OTHER_WITH_PODS: &str = "case 1,case 9,case 10,case 49,case 50,case 52,case 60,case 72,A1,A12,A20,A23,C6,C7,D18,\
                               F1,G1,H1,I3,I5,I7,K5,M1,N1,P3,R1,R5,R11";

/// A part of the lists that is quick.
pub async fn the_lists_hold_where_pods_differ(place: &mut Place) -> anyhow::Result<()> {
    lists_hold(place, Some(OTHER_WITH_PODS)).await
}

/// All of the lists.
pub async fn the_lists_hold(place: &mut Place) -> anyhow::Result<()> {
    lists_hold(place, None).await
}

async fn lists_hold(place: &mut Place, only: Option<&str>) -> anyhow::Result<()> {
    let mut values = place.values();
    ample_processor(&mut values);
    values["pools"][POOL] = pool(8);
    for engine in ["python", "ruby"] {
        values["pools"][engine] = pool(4);
        values["pools"][engine]["engines"] = json!([engine]);
        let image = place.setting.image_name(&format!("runner-{engine}"));
        values["pools"][engine]["template"]["image"] = json!(image);
    }
    for name in [POOL, "python", "ruby"] {
        values["pools"][name]["refill"] = json!({ "maxStarting": 8 });
        // Lines of large values ask for a gibibyte.
        values["pools"][name]["template"]["resources"]["limits"]["memory"] = json!("1100Mi");
    }
    // The clients of its runner take no other name for the certificate than the address they dial.
    let address = place.free_address().await?;
    values["api"] = json!({ "service": { "clusterIP": address } });
    place.install(&values).await?;
    place.warm().await?;
    let endpoint = place.endpoint().await?;
    let ca = file(&endpoint.ca)?;
    let token = file(place.token(TENANTS[0]).context("the tenant has a token")?)?;
    let folder = place.setting.logs.join("acceptance");
    std::fs::create_dir_all(&folder).context("making the folder of logs")?;
    // In a file, so that what was said until then is there when it takes too long.
    let path = folder.join("rows.log");
    let log = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    let mut command = Command::new(&place.setting.conformance);
    command.args(["--backend", "kubernetes", "--address", &endpoint.url]);
    command.arg("--ca").arg(ca.path()).arg("--token-file").arg(token.path());
    if let Some(only) = only {
        command.args(["--only", only]);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone().context("sharing a log")?).stderr(log);
    let running = tokio::time::timeout(LISTS_WITHIN, command.kill_on_drop(true).status());
    let status = running.await.with_context(|| format!("not over in time; see {}", path.display()))?;
    let status = status.context("running seance-conformance")?;
    ensure!(status.success(), "lines don't hold: {status}; see {}", path.display());
    place.nothing_is_leaked().await
}

fn file(text: &str) -> anyhow::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new().context("making a file")?;
    file.write_all(text.as_bytes()).context("writing a file")?;
    Ok(file)
}

/// What an attempt's answer has to be.
#[derive(Debug)]
enum Answer {
    /// Every one of the answers, which are `name=answer`, is one of these.
    Each(&'static [&'static str]),
    /// The same, but for these names, which reach nothing but the pod's own, or only read.
    EachBut(&'static [&'static str], &'static [&'static str]),
    /// It is this.
    Is(&'static str),
    /// A number from 1 to this, or the runner saw too many processes before it was told.
    UpTo(u64),
    /// It has each of these in it.
    Has(&'static [&'static str]),
}

use Answer::{Each, EachBut, Has, Is, UpTo};

/// What a pod denies, made of Pod Security "restricted", its mounts and the container runtime's own
/// filter of system calls. What more a local sandbox denies is in service/sandbox/tests/hostile.rs.
const DENIED: &[(&str, Answer)] = &[
    ("read_one /var/run/secrets/kubernetes.io/serviceaccount/token", Is("ENOENT")),
    ("read_one /etc/shadow", Is("ENOENT")),
    ("read_one /proc/1/environ", Is("EACCES")),
    ("read_one /proc/1/root/etc/passwd", Is("EACCES")),
    ("write", Each(&["EROFS", "EACCES", "EPERM", "ENOENT", "EIO"])),
    ("exec", Each(&["ENOENT", "EACCES"])),
    ("devices", EachBut(&["ENOENT", "EPERM", "EACCES", "ENXIO"], &["/dev/shm", "/dev/ptmx"])),
    ("mknod", Each(&["EPERM"])),
    ("namespaces", Each(&["EPERM", "ENOSYS"])),
    ("mounts", Each(&["EPERM"])),
    ("keys", Each(&["EPERM"])),
    ("kernel", EachBut(&["EPERM", "ENOSYS"], &["memfd_create", "personality"])),
    ("machine", EachBut(&["EPERM"], &["adjtimex"])),
    ("identity", EachBut(&["EPERM", "EFAULT"], &["setfsuid"])),
    ("terminal", Each(&["EPERM", "ENOTTY"])),
    ("status", Has(&["CapPrm:0000000000000000", "CapEff:0000000000000000", "CapBnd:0000000000000000"])),
    ("status", Has(&["NoNewPrivs:1", "Seccomp:2", "Uid:65532655326553265532"])),
    ("interfaces", Is("lo eth0")),
];

/// What a pod bounds, each in a pod of its own.
const BOUNDED: &[(&str, Answer)] =
    &[("forks", UpTo(256)), ("threads", UpTo(256)), ("fill_bytes", UpTo(4 << 20))];

/// The attempts of a host that a program has taken over: tests/hostile in the place of the runner.
pub async fn hostile_programs_are_contained(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    values["pools"][POOL]["template"]["image"] = json!(place.setting.image_name("hostile"));
    values["pools"][POOL]["template"]["tmpSize"] = json!("4Mi");
    place.install(&values).await?;
    place.warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.opened().await?;
    let mut wrong = Vec::new();
    for (attempt, wanted) in DENIED {
        let answer = attempted(&agent, &session, attempt).await?;
        wrong.extend(difference(wanted, &answer).map(|why| format!("{attempt}: {why}")));
    }
    agent.close(&session).await?;
    for (attempt, wanted) in BOUNDED {
        let session = agent.opened().await?;
        let answer = attempted(&agent, &session, attempt).await?;
        wrong.extend(difference(wanted, &answer).map(|why| format!("{attempt}: {why}")));
        agent.close(&session).await?;
    }
    if !wrong.is_empty() {
        bail!("a pod lets through what it must not:\n{}", wrong.join("\n"));
    }
    a_memory_bomb_ends(&agent).await?;
    place.nothing_is_leaked().await
}

/// Memory without end is the program's end, and not the session's.
async fn a_memory_bomb_ends(agent: &Agent) -> anyhow::Result<()> {
    let session = agent.opened().await?;
    let bomb = agent.run(&session, "memory").await?;
    ensure!(bomb.value().is_err() && bomb.output.is_empty(), "two gigabytes were had: {bomb:?}");
    let next = attempted(agent, &session, "interfaces").await?;
    ensure!(next == "lo eth0", "the session can't be used after a bomb: {next}");
    agent.close(&session).await
}

/// The answer to an attempt, or the code of the limit that ended it.
async fn attempted(agent: &Agent, session: &str, attempt: &str) -> anyhow::Result<String> {
    let seen = agent.run(session, attempt).await?;
    if let Ok(program) = seen.expect(seance_proto::v1alpha1::ObservationStatus::Error)
        && let Some(error) = &program.error
    {
        return Ok(error.code.clone());
    }
    seen.expect(seance_proto::v1alpha1::ObservationStatus::Completed).with_context(|| attempt.to_owned())?;
    Ok(seen.output)
}

/// What is wrong with an answer.
fn difference(wanted: &Answer, answer: &str) -> Option<String> {
    let but: &[&str] = if let EachBut(_, but) = wanted { but } else { &[] };
    let holds = match wanted {
        Each(allowed) | EachBut(allowed, _) => {
            let denied =
                |pair: &str| pair.rsplit_once('=').is_some_and(|(_, answer)| allowed.contains(&answer));
            let is_own = |pair: &str| pair.rsplit_once('=').is_some_and(|(name, _)| but.contains(&name));
            !answer.is_empty() && answer.split_whitespace().all(|pair| denied(pair) || is_own(pair))
        }
        Is(text) => answer == *text,
        UpTo(most) => {
            answer == "process_limit" || answer.parse().is_ok_and(|n: u64| (1..=*most).contains(&n))
        }
        Has(parts) => parts.iter().all(|part| answer.contains(part)),
    };
    (!holds).then(|| format!("{answer} instead of {wanted:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_held_against_what_is_wanted() {
        assert!(difference(&Each(&["EPERM"]), "a=EPERM b=EPERM").is_none());
        assert!(difference(&Each(&["EPERM"]), "a=EPERM b=OK").is_some());
        assert!(difference(&Each(&["EPERM"]), "").is_some());
        assert!(difference(&EachBut(&["EPERM"], &["b"]), "a=EPERM b=OK").is_none());
        assert!(difference(&Is("x"), "x").is_none() && difference(&Is("x"), "y").is_some());
        assert!(difference(&UpTo(3), "3").is_none() && difference(&UpTo(3), "4").is_some());
        assert!(difference(&UpTo(3), "process_limit").is_none());
        assert!(difference(&UpTo(3), "0").is_some() && difference(&UpTo(3), "?").is_some());
        assert!(difference(&Has(&["a", "b"]), "ab").is_none() && difference(&Has(&["c"]), "ab").is_some());
    }
}
