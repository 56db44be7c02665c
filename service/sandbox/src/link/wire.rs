//! Counts what an encoded frame would allocate before it is decoded.
//!
//! An entry of two bytes on the wire can be twenty times that in memory, so a frame of 64 MiB is
//! looked through first. Frames that fit in one message are too small to matter.

use super::Breach;

/// The most fields of the message that reports a program's end: kept and removed entries,
/// warnings, unawaited calls.
const REPORT_FIELDS_MAX: u64 = 64 * 1024;
/// The most bytes of a list of numbers.
const NUMBERS_BYTES_MAX: u64 = 1024 * 1024;

const PROGRAM_ENDED: u64 = 7;
const REPORT: u64 = 3;
const UNAWAITED_CALLS: u64 = 5;

/// Refuses a frame whose decoded form would be far larger than the frame. What is malformed is
/// left for the decoder to refuse.
pub(super) fn check(frame: &[u8]) -> Result<(), Breach> {
    let mut n_fields = 0;
    for ended in nested(frame, PROGRAM_ENDED) {
        for report in nested(ended, REPORT) {
            for (field, body) in Fields(report) {
                n_fields += 1;
                if n_fields > REPORT_FIELDS_MAX {
                    let what = "entries of a report";
                    return Err(Breach::TooMuch { what, n: n_fields, limit: REPORT_FIELDS_MAX });
                }
                let n = body.len() as u64;
                if field == UNAWAITED_CALLS && n > NUMBERS_BYTES_MAX {
                    let what = "bytes of unawaited calls";
                    return Err(Breach::TooMuch { what, n, limit: NUMBERS_BYTES_MAX });
                }
            }
        }
    }
    Ok(())
}

fn nested(message: &[u8], field: u64) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter(move |(found, _)| *found == field).map(|(_, body)| body)
}

/// The fields of an encoded message with the bodies of those that have a length. Ends at the
/// first byte that makes no sense.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let key = self.varint()?;
        let body: &[u8] = match key & 7 {
            0 => self.varint().map(|_| &[][..])?,
            1 => self.split(8)?,
            2 => {
                let length = self.varint()?;
                self.split(usize::try_from(length).ok()?)?
            }
            5 => self.split(4)?,
            _ => return None,
        };
        Some((key >> 3, body))
    }
}

impl<'a> Fields<'a> {
    fn split(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.split(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use seance_proto::host::v1alpha1::Ended;
    use seance_proto::link::v1alpha1::{AttachRequest, ProgramEnded, attach_request::Frame};

    use super::*;

    fn ended(report: Ended) -> Vec<u8> {
        let frame = ProgramEnded { program: 1, report: Some(report), ..ProgramEnded::default() };
        AttachRequest { number: 1, frame: Some(Frame::ProgramEnded(frame)) }.encode_to_vec()
    }

    #[test]
    fn an_honest_report_passes() {
        let report = Ended {
            value_json: Some("x".repeat(1_000_000)),
            unawaited_calls: (0..1000).collect(),
            removed_keys: vec!["k".to_owned(); 1000],
            ..Ended::default()
        };
        check(&ended(report)).unwrap();
    }

    #[test]
    fn lists_that_would_grow_when_decoded_are_refused() {
        let removed = vec![String::new(); 1_000_000];
        let error = check(&ended(Ended { removed_keys: removed, ..Ended::default() })).unwrap_err();
        assert!(matches!(error, Breach::TooMuch { what: "entries of a report", .. }));
        let unawaited_calls = vec![1; 2_000_000];
        let error = check(&ended(Ended { unawaited_calls, ..Ended::default() })).unwrap_err();
        assert!(matches!(error, Breach::TooMuch { what: "bytes of unawaited calls", .. }));
    }

    #[test]
    fn nonsense_is_left_to_the_decoder() {
        for bytes in [&[0xff; 20][..], &[0x3a, 0xff, 0xff, 0x03], &[0x3b], &[0x80]] {
            check(bytes).unwrap();
            assert!(AttachRequest::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
