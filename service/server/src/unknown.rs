//! Fields that this version doesn't know are refused by name of place, never ignored: a limit or an
//! option that a newer client sets has to be honoured or told of.
//!
//! The decoder of messages skips what it doesn't know, so the bytes are looked at before it, against
//! the API's own descriptors.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message as _;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use seance_proto::v1alpha1::FILE_DESCRIPTOR_SET;

/// Deeper messages are left to the decoder, which has its own limit.
const DEPTH_MAX: usize = 64;

struct Field {
    name: String,
    /// The type of a field that is a message.
    message: Option<String>,
}

#[derive(Default)]
struct Schema {
    messages: HashMap<String, HashMap<u64, Field>>,
    /// The request of each method that takes one message, by the method's path.
    requests: HashMap<String, String>,
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("our own descriptors can be decoded");
    let mut schema = Schema::default();
    for file in &set.file {
        for message in &file.message_type {
            schema.add(&format!(".{}", file.package()), message);
        }
        for service in &file.service {
            for method in service.method.iter().filter(|method| !method.client_streaming()) {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                schema.requests.insert(path, method.input_type().to_owned());
            }
        }
    }
    schema
});

impl Schema {
    fn add(&mut self, scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        for nested in &message.nested_type {
            self.add(&name, nested);
        }
        let fields = message.field.iter().map(|field| {
            let number = u64::try_from(field.number()).expect("field numbers are positive");
            let message = (field.r#type() == Type::Message).then(|| field.type_name().to_owned());
            (number, Field { name: field.name().to_owned(), message })
        });
        self.messages.insert(name, fields.collect());
    }
}

/// Whether a path is a method of ours that takes one message.
pub fn takes_one_message(path: &str) -> bool {
    SCHEMA.requests.contains_key(path)
}

/// Where a method's request has a field that this version doesn't know, such as
/// `observe.field 9`. What is no message at all is left to the decoder.
pub fn unknown_field(path: &str, request: &[u8]) -> Option<String> {
    let message = SCHEMA.requests.get(path)?;
    unknown_in(message, request, 0)
}

fn unknown_in(message: &str, mut bytes: &[u8], depth: usize) -> Option<String> {
    let fields = SCHEMA.messages.get(message).filter(|_| depth < DEPTH_MAX)?;
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let Some(field) = fields.get(&(key >> 3)) else { return Some(format!("field {}", key >> 3)) };
        let data = value(key & 7, &mut bytes)?;
        if let Some(message) = &field.message
            && let Some(inner) = unknown_in(message, data, depth + 1)
        {
            return Some(format!("{}.{inner}", field.name));
        }
    }
    None
}

/// The bytes of a field's value; none when it is malformed.
fn value<'a>(wire_type: u64, bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = match wire_type {
        0 => {
            varint(bytes)?;
            0
        }
        1 => 8,
        2 => usize::try_from(varint(bytes)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(value)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use seance_proto::v1alpha1 as proto;

    const OPEN: &str = "/seance.v1alpha1.Sessions/Open";
    const EXECUTE: &str = "/seance.v1alpha1.Sessions/Execute";

    fn open() -> proto::OpenRequest {
        proto::OpenRequest {
            engine: "javascript".to_owned(),
            limits: HashMap::from([("wall_ms".to_owned(), u64::MAX)]),
            idle_timeout: Some(prost_types::Duration { seconds: -1, nanos: 5 }),
            catalog: Some(proto::CatalogSource {
                source: Some(proto::catalog_source::Source::Inline(proto::Catalog {
                    tools: vec![proto::Tool { name: "a".to_owned(), read_only: true, ..Default::default() }],
                })),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_this_version_knows_passes() {
        assert_eq!(unknown_field(OPEN, &open().encode_to_vec()), None);
        assert_eq!(unknown_field(OPEN, &[]), None);
    }

    #[test]
    fn an_unknown_field_is_found_at_any_depth() {
        let mut bytes = open().encode_to_vec();
        bytes.extend([0xf8, 0x06, 1]); // 111: 1
        assert_eq!(unknown_field(OPEN, &bytes).as_deref(), Some("field 111"));
        // observe (6) { 9: 1 }
        assert_eq!(unknown_field(EXECUTE, &[0x32, 2, 0x48, 1]).as_deref(), Some("observe.field 9"));
        // limits (8) { 3: 1 }, an entry of a map
        assert_eq!(unknown_field(EXECUTE, &[0x42, 2, 0x18, 1]).as_deref(), Some("limits.field 3"));
    }

    #[test]
    fn what_is_no_message_is_left_to_the_decoder() {
        for bytes in [
            &[0x0a, 0xff][..],
            &[0x80; 12],
            &[0x0b],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(unknown_field(OPEN, bytes), None);
        }
        assert!(!takes_one_message("/seance.v1alpha1.Tools/Serve") && takes_one_message(EXECUTE));
    }
}
