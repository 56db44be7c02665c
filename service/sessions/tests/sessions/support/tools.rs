//! The tools that programs of tests call, and who answers them.
//! What it waits passes on the paused clock of its tests (`start_paused`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seance_broker::providers::{Content, LocalCall, ToolHandler, ToolResult};
use seance_core::catalog::{Catalog, Tool};
use seance_core::ids::CallId;

/// `echo`, `sleep` and `pay` have effects; `look` is read-only.
pub fn catalog() -> Catalog {
    let tools = ["echo", "sleep", "pay", "boom", "look"];
    Catalog::new(tools.into_iter().map(|name| tool(name, name == "look")).collect()).unwrap()
}

pub fn tool(name: &str, read_only: bool) -> Tool {
    Tool {
        name: name.to_owned(),
        description: String::new(),
        input_schema: None,
        output_schema: None,
        read_only,
        replay_safe: false,
        timeout: None,
    }
}

/// Answers in this process and writes down what it was asked.
#[derive(Default)]
pub struct Tools {
    seen: Mutex<Vec<(CallId, bool)>>,
    cancelled: Mutex<Vec<CallId>>,
}

impl Tools {
    /// Every call that was given here, and whether it was declared a repetition.
    pub fn seen(&self) -> Vec<(CallId, bool)> {
        self.seen.lock().unwrap().clone()
    }

    /// Calls that were told to give up.
    pub fn cancelled(&self) -> Vec<CallId> {
        self.cancelled.lock().unwrap().clone()
    }

    pub fn shared() -> Arc<Self> {
        Arc::default()
    }
}

#[async_trait]
impl ToolHandler for Tools {
    async fn call(&self, LocalCall { call, cancelled }: LocalCall) -> ToolResult {
        self.seen.lock().unwrap().push((call.id, call.repeated));
        match &*call.tool {
            "sleep" => {
                let ms = call.arguments.chars().filter(char::is_ascii_digit).collect::<String>();
                let slept = tokio::time::sleep(Duration::from_millis(ms.parse().unwrap_or(60_000)));
                tokio::select! {
                    biased;
                    () = cancelled.cancelled() => self.cancelled.lock().unwrap().push(call.id),
                    () = slept => {}
                }
                Content::Value("null".to_owned()).into()
            }
            "boom" => Content::Failure("the cause, which is for the log".to_owned()).into(),
            _ => Content::Value(call.arguments.to_string()).into(),
        }
    }
}
