//! The protocols of Seance: the public gRPC API, the link between runner and service, and the
//! frames between runner and host. Generated from the `.proto` files beside this crate.

pub mod codec;
pub mod socket;

/// Re-exported so that users of the messages need no version of their own.
pub use prost;

/// The public API.
#[allow(clippy::large_enum_variant, reason = "generated; messages live briefly and one by one")]
pub mod v1alpha1 {
    tonic::include_proto!("seance.v1alpha1");

    /// The public API's descriptors with comments, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/public_descriptor.bin"));
}

/// The link between a runner and the service.
pub mod link {
    /// Version 1 of the link, still alpha.
    #[allow(clippy::large_enum_variant, reason = "generated; messages live briefly and one by one")]
    pub mod v1alpha1 {
        tonic::include_proto!("seance.link.v1alpha1");
    }
}

/// Frames between a runner and a host.
pub mod host {
    /// Version 1 of the host frames, still alpha.
    #[allow(clippy::large_enum_variant, reason = "generated; messages live briefly and one by one")]
    pub mod v1alpha1 {
        tonic::include_proto!("seance.host.v1alpha1");
    }
}

/// No message of the public API is larger, so that clients with default settings work.
pub const PUBLIC_MESSAGE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// No message of the link is larger; larger frames travel as chunks.
pub const LINK_MESSAGE_BYTES_MAX: usize = 256 * 1024;
