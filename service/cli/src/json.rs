//! Messages of the API as JSON, in the standard form of protobuf with field names as in the protos
//! and 64-bit numbers as numbers.

use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use seance_proto::prost::Message;
use seance_proto::v1alpha1::FILE_DESCRIPTOR_SET;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the build made the descriptors"));

/// A message of `seance.v1alpha1` as JSON. `name` is its name there.
pub fn of(name: &str, message: &impl Message) -> Result<serde_json::Value> {
    let descriptor = POOL
        .get_message_by_name(&format!("seance.v1alpha1.{name}"))
        .with_context(|| format!("the API has no message {name}"))?;
    let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())?;
    let options = SerializeOptions::new().stringify_64_bit_integers(false).use_proto_field_name(true);
    let mut object = message.serialize_with_options(serde_json::value::Serializer, &options)?;
    sort_maps(&mut object);
    Ok(object)
}

/// Fields that are maps in the protos, whose entries come in any order.
const MAPS: [&str; 2] = ["limits", "labels"];

fn sort_maps(value: &mut serde_json::Value) {
    let Some(object) = value.as_object_mut() else { return };
    for (name, field) in object {
        match field.as_object_mut() {
            Some(map) if MAPS.contains(&name.as_str()) => map.sort_keys(),
            _ => sort_maps(field),
        }
    }
}

/// Prints a message as one line of JSON.
pub fn print(name: &str, message: &impl Message) -> Result<()> {
    crate::display::say(&of(name, message)?.to_string())
}
