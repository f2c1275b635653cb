//! The names of the tenants that did a model harm, for people: their requests may have ended before the engine blames them.

use std::collections::BTreeMap;

use packhorse_serving::TenantKey;

use crate::tenant::TenantName;

/// The most names that are remembered.
const MOST: usize = 1024;

/// The names of tenants.
#[derive(Debug, Default)]
pub(super) struct BlamedTenants(BTreeMap<TenantKey, TenantName>);

impl BlamedTenants {
    /// Remembers a name. If there are too many, another one is forgotten.
    pub(super) fn remember(&mut self, tenant: TenantKey, name: &TenantName) {
        if self.0.contains_key(&tenant) {
            return;
        }
        if self.0.len() >= MOST {
            self.0.pop_first();
        }
        self.0.insert(tenant, name.clone());
    }

    /// Returns the name of a tenant.
    pub(super) fn name(&self, tenant: TenantKey) -> Option<&TenantName> {
        self.0.get(&tenant)
    }
}
