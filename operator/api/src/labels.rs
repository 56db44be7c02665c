//! Labels and names on what we make.
//!
//! Labels are for people and selectors. Nothing is decided by them: what belongs to whom is decided
//! by the UID in the controlling owner reference.

/// The pool, on Sandboxes and pods.
pub const POOL: &str = "seance.dev/pool";
/// The Sandbox, on pods. The namespace's network policies select pods that have it.
pub const SANDBOX: &str = "seance.dev/sandbox";
/// The tenant, on pods from assignment on: cost is told by it.
pub const TENANT: &str = "seance.dev/tenant";
/// The session, on pods from assignment on.
pub const SESSION: &str = "seance.dev/session";
/// The hash of the template a pod was made from, on pods.
pub const TEMPLATE: &str = "seance.dev/template";
/// Why a Sandbox was made, on Sandboxes: [`ORIGIN_WARM`] or [`ORIGIN_COLD`].
pub const ORIGIN: &str = "seance.dev/origin";
/// Made by the operator to keep the pool warm.
pub const ORIGIN_WARM: &str = "warm";
/// Made by the service because no warm one was there.
pub const ORIGIN_COLD: &str = "cold";
/// What Kubernetes calls the program that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Whether Kubernetes takes this text as a label's value: up to 63 letters, digits, `-`, `_` and
/// `.`, and a letter or digit at both ends; or nothing.
pub fn is_label_value(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && alphanumeric(text.as_bytes().first())
        && alphanumeric(text.as_bytes().last())
}

#[cfg(test)]
mod tests {
    use super::is_label_value;

    #[test]
    fn label_values_are_what_kubernetes_takes() {
        for good in ["", "a", "ses_0190", "a.b-c_D", &"x".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["-a", "a_", "a b", "ä", ".", "a/b", &"x".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}
