//! Doing a request once, and no more than a tenant may have: idempotency keys and places.

use std::collections::HashMap;
use std::sync::Arc;

use seance_core::ids::TenantId;
use seance_core::reasons;
use seance_core::store::{Append, DoneRequest, IDEMPOTENCY_KEY_BYTES_MAX};

use crate::error::Error;
use crate::requests::Idempotency;
use crate::sessions::{Inner, Live, Sessions};
use crate::shared::Shared;

impl Sessions {
    pub(crate) async fn once(
        &self,
        tenant: &TenantId,
        method: &'static str,
        idempotency: Option<&Idempotency>,
    ) -> Result<Once, Error> {
        let Some(Idempotency { key, request_digest }) = idempotency else {
            return Ok(Once::First(OnceGuard { inner: self.inner.clone(), held: None }));
        };
        if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
            let message = format!("the idempotency key is over {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
            return Err(Error::invalid(reasons::INVALID_REQUEST, "idempotency_key", message));
        }
        let held = (tenant.clone(), method, key.clone());
        if !self.inner.lock().keys.insert(held.clone()) {
            let message = "another request with this idempotency key is at work";
            return Err(Error::invalid(reasons::CONTROL_ACTIVE, "idempotency_key", message));
        }
        let guard = OnceGuard { inner: self.inner.clone(), held: Some((held, request_digest.clone())) };
        match self.inner.store.done_request(tenant, method, key).await? {
            None => Ok(Once::First(guard)),
            Some(done) if done.request_digest == *request_digest => Ok(Once::Before(done)),
            Some(_) => {
                let message = format!("idempotency key {key:?} was used with another {method} request");
                Err(Error::invalid(reasons::IDEMPOTENCY_KEY_REUSED, "idempotency_key", message))
            }
        }
    }

    /// Records a request that was done and can be done again without harm. It is not in the same
    /// commit as its effect, which a repeat finds done.
    pub(crate) async fn remember_done(&self, tenant: &TenantId, shared: &Shared, done: Option<DoneRequest>) {
        if done.is_none() {
            return;
        }
        let epoch = shared.record.borrow().epoch;
        let append = Append { done, ..Append::empty(tenant.clone(), shared.id, epoch) };
        if let Err(error) = self.inner.store.append(append).await {
            tracing::warn!(session = %shared.id, error = &error as &dyn std::error::Error, "a done request was not recorded");
        }
    }

    pub(crate) fn room(&self, tenant: &TenantId) -> Result<Room, Error> {
        let mut live = self.inner.lock();
        if live.stopping {
            return Err(Error::Stopping);
        }
        let n_open = live.sessions.values().filter(|shared| shared.tenant == *tenant).count();
        let n_opening = live.opening.entry(tenant.clone()).or_default();
        let max = self.inner.config.max_sessions;
        if n_open + *n_opening >= max {
            return Err(Error::TooMany {
                message: format!("tenant {tenant} has {max} open sessions, which is its limit"),
            });
        }
        *n_opening += 1;
        Ok(Room { inner: self.inner.clone(), tenant: tenant.clone(), places: |live| &mut live.opening })
    }

    pub(crate) fn room_to_run(&self, tenant: &TenantId) -> Result<Room, Error> {
        let of_tenant = |shared: &&Arc<Shared>| shared.tenant == *tenant;
        let is_active = |shared: &Arc<Shared>| shared.record.borrow().active_program.is_some();
        let mut live = self.inner.lock();
        let n_active = live.sessions.values().filter(of_tenant).filter(|shared| is_active(shared)).count();
        let max = self.inner.config.max_running;
        let n_accepting = live.accepting.entry(tenant.clone()).or_default();
        if n_active + *n_accepting >= max {
            return Err(Error::TooMany {
                message: format!("tenant {tenant} has {max} active programs, which is its limit"),
            });
        }
        *n_accepting += 1;
        Ok(Room { inner: self.inner.clone(), tenant: tenant.clone(), places: |live| &mut live.accepting })
    }
}

/// Whether a request was done before.
pub(crate) enum Once {
    Before(DoneRequest),
    First(OnceGuard),
}

/// Holds an idempotency key while its request is at work.
pub(crate) struct OnceGuard {
    inner: Arc<Inner>,
    held: Option<((TenantId, &'static str, String), String)>,
}

impl OnceGuard {
    /// The record of the request, once it is known what it made.
    pub(crate) fn done(&self, outcome: String) -> Option<DoneRequest> {
        let ((_, method, key), request_digest) = self.held.clone()?;
        Some(DoneRequest { method: method.to_owned(), key, request_digest, outcome, at: self.inner.now() })
    }
}

impl Drop for OnceGuard {
    fn drop(&mut self) {
        if let Some((held, _)) = &self.held {
            self.inner.lock().keys.remove(held);
        }
    }
}

/// A place among what a tenant may have, held until what takes it counts by itself.
pub(crate) struct Room {
    inner: Arc<Inner>,
    tenant: TenantId,
    places: fn(&mut Live) -> &mut HashMap<TenantId, usize>,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut live = self.inner.lock();
        let places = (self.places)(&mut live);
        if let Some(n) = places.get_mut(&self.tenant) {
            *n -= 1;
            if *n == 0 {
                places.remove(&self.tenant);
            }
        }
    }
}
