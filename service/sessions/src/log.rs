//! Reading a session's committed events: from memory where they are recent, else from the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use seance_core::event::{Event, EventKind};
use seance_core::ids::{EventSeq, ProgramNumber, SessionId};
use seance_core::program::ProgramRecord;
use seance_core::store::{self, SessionStore};
use tokio::sync::watch;

/// Recent events that a working session keeps in memory, in bytes.
const TAIL_BYTES_MAX: usize = 256 * 1024;
/// What an idle session keeps, in bytes.
const IDLE_TAIL_BYTES_MAX: usize = 8 * 1024;
/// Events of one read from the store.
const READ_EVENTS_MAX: usize = 256;
/// Bytes of one read from the store.
const READ_BYTES_MAX: usize = 1024 * 1024;

/// A session's recent committed events, and word of new ones.
#[derive(Debug)]
pub(crate) struct Tail {
    recent: Mutex<Recent>,
    news: watch::Sender<News>,
}

/// What readers wait for.
#[derive(Debug, Clone, Copy)]
struct News {
    last: EventSeq,
    /// Nothing more is committed here.
    is_over: bool,
}

#[derive(Debug, Default)]
struct Recent {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl Tail {
    pub(crate) fn new(last: EventSeq) -> Self {
        Self { recent: Mutex::default(), news: watch::Sender::new(News { last, is_over: false }) }
    }

    /// Takes committed events, in order.
    pub(crate) fn publish(&self, events: Vec<Event>) {
        let Some(last) = events.last().map(|event| event.seq) else { return };
        let idle = events.iter().any(|event| matches!(event.kind, EventKind::ProgramEnded(_)));
        let bytes_max = if idle { IDLE_TAIL_BYTES_MAX } else { TAIL_BYTES_MAX };
        {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            let newest = events.len();
            for event in events {
                recent.bytes += weight(&event);
                recent.events.push_back(Arc::new(event));
            }
            // What was just committed stays whole: its readers are about to be woken.
            while recent.bytes > bytes_max && recent.events.len() > newest {
                if let Some(event) = recent.events.pop_front() {
                    recent.bytes -= weight(&event);
                }
            }
        }
        self.news.send_modify(|news| news.last = last);
    }

    /// Tells readers that nothing more is committed here.
    pub(crate) fn end(&self) {
        self.news.send_modify(|news| news.is_over = true);
    }

    /// The last committed event's number.
    pub(crate) fn last(&self) -> EventSeq {
        self.news.borrow().last
    }

    /// Events from `from` on, where memory has them all.
    fn read(&self, from: EventSeq) -> Option<Vec<Arc<Event>>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent.events.front()?.seq;
        let skip = usize::try_from(from.0.checked_sub(first.0)?).ok()?;
        Some(recent.events.iter().skip(skip).take(READ_EVENTS_MAX).cloned().collect())
    }
}

fn weight(event: &Event) -> usize {
    const RECORD_BYTES: usize = 200;
    match &event.kind {
        EventKind::Output { data, .. } => RECORD_BYTES + data.len(),
        EventKind::CallMade(_) | EventKind::CallEnded { .. } => 4 * RECORD_BYTES,
        EventKind::ProgramEnded(record) => RECORD_BYTES * (4 + record.calls.len()),
        _ => RECORD_BYTES,
    }
}

/// Reads a session's events in order, from a number on.
pub(crate) struct Reader {
    session: SessionId,
    next: EventSeq,
    tail: Option<Arc<Tail>>,
    news: Option<watch::Receiver<News>>,
    store: Arc<dyn SessionStore>,
}

impl Reader {
    /// A reader from `next` on. A session that is over has no tail.
    pub(crate) fn new(
        session: SessionId,
        next: EventSeq,
        tail: Option<Arc<Tail>>,
        store: Arc<dyn SessionStore>,
    ) -> Self {
        let news = tail.as_ref().map(|tail| tail.news.subscribe());
        Self { session, next: next.max(EventSeq::FIRST), tail, news, store }
    }

    /// A program of the session as it was committed.
    pub(crate) async fn program(&self, number: ProgramNumber) -> Result<Option<ProgramRecord>, store::Error> {
        self.store.program(self.session, number).await
    }

    /// The number of the next event.
    pub(crate) fn next_seq(&self) -> EventSeq {
        self.next
    }

    /// The events that are there now; empty when there are none beyond those given.
    ///
    /// Cancel-safe: events that were not returned are read again.
    pub(crate) async fn read(&mut self) -> Result<Vec<Arc<Event>>, store::Error> {
        if self.tail.as_ref().is_some_and(|tail| tail.last() < self.next) {
            return Ok(Vec::new());
        }
        let recent = self.tail.as_ref().and_then(|tail| tail.read(self.next));
        let events = match recent {
            Some(events) => events,
            None => {
                let read = self.store.events(self.session, self.next, READ_EVENTS_MAX, READ_BYTES_MAX);
                read.await?.into_iter().map(Arc::new).collect()
            }
        };
        if let Some(last) = events.last() {
            self.next = last.seq.next();
        }
        Ok(events)
    }

    /// Waits for an event that was not read. Returns false when there will be none.
    ///
    /// Cancel-safe.
    pub(crate) async fn wait(&mut self) -> bool {
        let next = self.next;
        match &mut self.news {
            Some(news) => {
                let news = news.wait_for(|news| news.last >= next || news.is_over).await;
                news.is_ok_and(|news| news.last >= next)
            }
            None => false,
        }
    }
}

/// Follows a session's log.
pub struct Follower {
    pub(crate) reader: Reader,
    pub(crate) until: Option<EventSeq>,
    pub(crate) buffer: VecDeque<Arc<Event>>,
}

impl Follower {
    /// The next event; none at the end of a session that is over, or where the caller wanted to end.
    ///
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, crate::Error> {
        loop {
            if let Some(event) = self.buffer.pop_front() {
                return Ok(self.until.is_none_or(|until| event.seq <= until).then_some(event));
            }
            if self.until.is_some_and(|until| self.reader.next_seq() > until) {
                return Ok(None);
            }
            self.buffer = self.reader.read().await?.into();
            if self.buffer.is_empty() && (self.until.is_some() || !self.reader.wait().await) {
                // Nothing more can be committed; what came just before the end is still to read.
                self.buffer = self.reader.read().await?.into();
                if self.buffer.is_empty() {
                    return Ok(None);
                }
            }
        }
    }
}
