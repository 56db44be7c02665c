//! Who may call, and that nobody sees what is another's.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use seance_proto::v1alpha1 as api;
use serde_json::json;

use crate::agent::{Agent, Refusal, catalog};
use crate::place::{Place, TENANTS};

/// Every method with a session of another tenant's, and calls without credentials.
pub async fn what_is_another_tenants_is_not_found(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let owner = place.agent(TENANTS[0]).await?;
    let session = owner.open(|request| request.catalog = catalog(&["gate"])).await;
    let session = session.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    let seen = owner.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");

    let other = place.agent(TENANTS[1]).await?;
    for (method, status) in every_method(&other, &session).await {
        let refusal =
            Refusal::of(&status.with_context(|| format!("{method} of another's session was answered"))?);
        ensure!(refusal.code == tonic::Code::NotFound, "{method}: {refusal:?}");
        ensure!(refusal.reason == "SESSION_NOT_FOUND", "{method}: {refusal:?}");
    }
    let listed = other.sessions.clone().list(api::ListRequest::default()).await?.into_inner();
    ensure!(listed.sessions.is_empty(), "another tenant's sessions are listed");

    let stranger = Agent::connect(&place.endpoint().await?, "seance_0000").await?;
    let refusal = stranger.open(|_| ()).await.err().context("a stranger opened a session")?;
    ensure!(refusal.reason == "UNAUTHENTICATED", "{refusal:?}");
    owner.close(&session).await?;
    place.nothing_is_leaked().await
}

/// Calls each method that names a session; the refusals, none where one was answered.
async fn every_method(agent: &Agent, session: &str) -> Vec<(&'static str, Option<tonic::Status>)> {
    let id = || session.to_owned();
    let mut sessions = agent.sessions.clone();
    let mut tools = agent.tools.clone();
    let execute = api::ExecuteRequest {
        session_id: id(),
        source: b"1".to_vec().into(),
        language: "javascript".to_owned(),
        ..api::ExecuteRequest::default()
    };
    let blob = api::GetBlobRequest { session_id: id(), blob_id: format!("blob_{:032x}", 1), offset: 0 };
    let outcome = Some(api::tool_result::Outcome::ValueJson("1".to_owned()));
    let result = api::ToolResult { outcome, ..api::ToolResult::default() };
    let answer = api::AnswerRequest {
        session_id: id(),
        call_id: format!("call_{}_1_1", session.trim_start_matches("ses_")),
        result: Some(result),
        ..api::AnswerRequest::default()
    };
    let attach = api::Attach { session_id: id(), ..api::Attach::default() };
    let attach = api::ServeRequest { message: Some(api::serve_request::Message::Attach(attach)) };
    let wait = api::WaitRequest { session_id: id(), ..api::WaitRequest::default() };
    let stop = api::StopRequest { session_id: id(), ..api::StopRequest::default() };
    let close = api::CloseRequest { session_id: id(), ..api::CloseRequest::default() };
    let get = api::GetRequest { session_id: id() };
    let program = api::GetProgramRequest { session_id: id(), program_number: 1 };
    let follow = api::FollowRequest { session_id: id(), ..api::FollowRequest::default() };
    vec![
        ("Execute", streamed(sessions.execute(execute).await).await),
        ("Wait", streamed(sessions.wait(wait).await).await),
        ("Stop", sessions.stop(stop).await.err()),
        ("Close", sessions.close(close).await.err()),
        ("Get", sessions.get(get).await.err()),
        ("GetProgram", sessions.get_program(program).await.err()),
        ("Follow", streamed(sessions.follow(follow).await).await),
        ("GetBlob", streamed(sessions.get_blob(blob).await).await),
        ("Answer", tools.answer(answer).await.err()),
        ("Serve", streamed(tools.serve(tokio_stream::once(attach)).await).await),
    ]
}

/// The refusal of a stream: at once, or as its first message.
async fn streamed<T>(
    answer: Result<tonic::Response<tonic::Streaming<T>>, tonic::Status>,
) -> Option<tonic::Status> {
    match answer {
        Ok(stream) => stream.into_inner().message().await.err(),
        Err(status) => Some(status),
    }
}

/// A token of a service account that is mapped to a tenant; and tokens that are not ours to take.
pub async fn a_token_of_the_cluster_is_a_caller(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    let account = json!([{ "namespace": place.namespace, "name": "agent" }]);
    values["tenants"][0]["serviceAccounts"] = account;
    place.install(&values).await?;
    let accounts = place.ours::<ServiceAccount>();
    for name in ["agent", "stranger"] {
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(name.to_owned());
        accounts.create(&PostParams::default(), &account).await.context("making an account")?;
    }
    place.warm().await?;
    let endpoint = place.endpoint().await?;

    let agent = Agent::connect(&endpoint, &token(place, "agent", "seance").await?).await?;
    let session = agent.opened().await?;
    // The account and the bearer token are callers of one tenant.
    place.agent(TENANTS[0]).await?.session(&session).await?;
    let seen = agent.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");
    agent.close(&session).await?;

    for (name, audience) in [("agent", "https://kubernetes.default.svc"), ("stranger", "seance")] {
        let caller = Agent::connect(&endpoint, &token(place, name, audience).await?).await?;
        let refusal = caller.open(|_| ()).await.err();
        let refusal =
            refusal.with_context(|| format!("{name} with a token for {audience} opened a session"))?;
        ensure!(refusal.reason == "UNAUTHENTICATED", "{refusal:?}");
    }
    place.nothing_is_leaked().await
}

/// A token of an account in the release's namespace.
async fn token(place: &Place, account: &str, audience: &str) -> anyhow::Result<String> {
    let spec = TokenRequestSpec {
        audiences: vec![audience.to_owned()],
        expiration_seconds: Some(600),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = place.ours::<ServiceAccount>();
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(answer.status.context("the answer has no token")?.token)
}
