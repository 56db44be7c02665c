//! How events and records are kept: MessagePack with field and variant names, so that a log that
//! was written by an older version is read by a newer one.

use seance_core::session::SessionRecord;
use seance_core::store::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rules::Head;

/// A failure with its cause.
pub(crate) fn failed(
    doing: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::Failed { doing, source: source.into() }
}

/// A value as it is kept.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec_named(value).map_err(|error| failed("encoding a record", error))
}

/// A value from what was kept.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(bytes).map_err(|error| failed("decoding a record", error))
}

/// A session's record: the epoch and the last event are the head's, because the head moves without
/// the record.
pub(crate) fn decode_record(body: &[u8], head: &Head) -> Result<SessionRecord, Error> {
    let mut record: SessionRecord = decode(body)?;
    record.epoch = head.epoch;
    record.last_seq = head.last_seq;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use seance_core::event::{Event, EventKind, OutputSource};
    use seance_core::ids::{EventSeq, ProgramNumber};
    use seance_core::time::Timestamp;

    use super::*;

    fn output() -> Event {
        Event {
            seq: EventSeq(7),
            at: Timestamp(1_700_000_000_000_000),
            program: Some(ProgramNumber(2)),
            kind: EventKind::Output {
                source: OutputSource::Text,
                data: Bytes::from_static(b"hi\xff"),
                separated: true,
            },
        }
    }

    #[test]
    fn an_event_of_schema_1_is_read_as_it_was_written() {
        let kept = "84a373657107a26174cf00060a24181e4000a770726f6772616d02a46b696e6481a64f757470757483\
                    a6736f75726365a454657874a464617461c4036869ffa9736570617261746564c3";
        let bytes: Vec<u8> = kept
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(decode::<Event>(&bytes).unwrap(), output());
        assert_eq!(encode(&output()).unwrap(), bytes);
    }

    #[test]
    fn what_is_cut_off_is_an_error_and_no_panic() {
        let bytes = encode(&output()).unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(decode::<Event>(&bytes[..end]), Err(Error::Failed { .. })), "{end}");
        }
    }
}
