//! The namespace of a pool: its network policies, its copy of the link's CA, its runners' service
//! account. Written when they differ, policies first: pods are made only where all of them are.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use seance_operator_api::pool::reason;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::status::Obstacle;
use crate::build::link::Link;
use crate::build::namespace;
use crate::cluster::Error;
use crate::context::Context;
use crate::differ::has_all;

/// Prepares a namespace; the link, or what stands in the way.
pub async fn prepare(context: &Context, namespace: &str) -> Result<Link, Obstacle> {
    let state = context.link.borrow().clone();
    let unknown = |message: String| Obstacle { reason: reason::LINK_UNKNOWN, message };
    let prepared = match (state.link, state.ca) {
        (Ok(link), Ok(ca)) => apply(context, namespace, &link, &ca).await.map(|()| link).map_err(failed),
        (Err(why), _) | (_, Err(why)) => Err(unknown(why)),
    };
    context.set_prepared(namespace, prepared.is_ok());
    prepared
}

fn failed(error: Error) -> Obstacle {
    let why = std::error::Error::source(&error).map(ToString::to_string);
    let message = match why {
        Some(why) => crate::sandbox::started::told(&error.to_string(), Some(&why)),
        None => error.to_string(),
    };
    Obstacle { reason: reason::NAMESPACE_NOT_PREPARED, message }
}

async fn apply(context: &Context, namespace: &str, link: &Link, ca: &str) -> Result<(), Error> {
    for policy in namespace::policies(namespace, link) {
        apply_if_other(context, &context.stores.policies, &policy).await?;
    }
    apply_if_other(context, &context.stores.service_accounts, &namespace::service_account(namespace)).await?;
    apply_if_other(context, &context.stores.config_maps, &namespace::link_ca(namespace, ca)).await
}

async fn apply_if_other<K>(context: &Context, store: &Store<K>, wanted: &K) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned,
    K: Clone + Debug + 'static,
{
    let key = ObjectRef::new(&wanted.name_any()).within(&wanted.namespace().unwrap_or_default());
    match store.get(&key) {
        Some(there) if has_all(there.as_ref(), wanted) => Ok(()),
        _ => context.cluster.apply(wanted).await,
    }
}
