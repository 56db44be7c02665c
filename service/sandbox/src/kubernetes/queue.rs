//! Who is next: a bounded line of callers that wait for a sandbox, fair between tenants.
//!
//! Each tenant's callers are served in their order; between tenants turns are taken, however many
//! callers one has. Pure: no clock, no tasks.

use std::collections::HashMap;

use seance_core::ids::TenantId;

/// The place of one caller in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(u64);

/// Nobody more may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) n_waiting: usize,
}

#[derive(Debug)]
struct Waiter {
    place: Place,
    /// Whose turn comes first: a tenant's callers have turns that rise by one.
    turn: u64,
    tenant: TenantId,
    pools: Vec<String>,
}

/// The line.
#[derive(Debug)]
pub(super) struct Queue {
    waiters: Vec<Waiter>,
    next_place: u64,
    /// The turn that was served last; who joins anew begins behind it.
    turn: u64,
    last_turns: HashMap<TenantId, u64>,
    n_max: usize,
    n_tenant_max: usize,
}

impl Queue {
    pub(super) fn new(n_max: usize, n_tenant_max: usize) -> Self {
        Self { waiters: Vec::new(), next_place: 0, turn: 0, last_turns: HashMap::new(), n_max, n_tenant_max }
    }

    /// Lets a caller join for the first sandbox of any of these pools, the one it wants most first.
    pub(super) fn join(&mut self, tenant: &TenantId, pools: Vec<String>) -> Result<Place, Full> {
        let n_own = self.waiters.iter().filter(|waiter| waiter.tenant == *tenant).count();
        if self.waiters.len() >= self.n_max || n_own >= self.n_tenant_max {
            return Err(Full { n_waiting: self.waiters.len() });
        }
        let place = Place(self.next_place);
        self.next_place += 1;
        let last = self.last_turns.get(tenant).copied().unwrap_or(0);
        let turn = last.max(self.turn) + 1;
        self.last_turns.insert(tenant.clone(), turn);
        self.waiters.push(Waiter { place, turn, tenant: tenant.clone(), pools });
        Ok(place)
    }

    /// Takes a caller out of line.
    pub(super) fn leave(&mut self, place: Place) {
        self.waiters.retain(|waiter| waiter.place != place);
        self.forget_turns();
    }

    /// Takes out who gets a sandbox of this pool.
    pub(super) fn next(&mut self, pool: &str) -> Option<Place> {
        let fits = |waiter: &&Waiter| waiter.pools.iter().any(|wanted| wanted == pool);
        let (turn, place) =
            self.waiters.iter().filter(fits).map(|waiter| (waiter.turn, waiter.place)).min()?;
        self.turn = self.turn.max(turn);
        self.leave(place);
        Some(place)
    }

    /// Whether somebody in line would get a sandbox of this pool.
    pub(super) fn wants(&self, pool: &str) -> bool {
        self.waiters.iter().any(|waiter| waiter.pools.iter().any(|wanted| wanted == pool))
    }

    /// Where a caller stands: 1 is next.
    pub(super) fn position(&self, place: Place) -> Option<usize> {
        let own = self.waiters.iter().find(|waiter| waiter.place == place)?;
        let is_before = |waiter: &&Waiter| {
            (waiter.turn, waiter.place) < (own.turn, own.place)
                && waiter.pools.iter().any(|pool| own.pools.contains(pool))
        };
        Some(self.waiters.iter().filter(is_before).count() + 1)
    }

    /// Where all callers stand, in order, and the pools that each waits for.
    pub(super) fn positions(&self) -> Vec<(Place, usize, &[String])> {
        let mut in_order: Vec<&Waiter> = self.waiters.iter().collect();
        in_order.sort_unstable_by_key(|waiter| (waiter.turn, waiter.place));
        // Few lists of pools are asked for by many callers.
        let mut before: Vec<(&[String], usize)> = Vec::new();
        let mut positions = Vec::with_capacity(in_order.len());
        for waiter in in_order {
            let pools = waiter.pools.as_slice();
            let ahead = before.iter().filter(|(other, _)| other.iter().any(|pool| pools.contains(pool)));
            positions.push((waiter.place, ahead.map(|(_, n)| n).sum::<usize>() + 1, pools));
            match before.iter_mut().find(|(other, _)| *other == pools) {
                Some((_, n)) => *n += 1,
                None => before.push((pools, 1)),
            }
        }
        positions
    }

    /// Whether nobody is in line.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many callers want this pool most.
    pub(super) fn n_first_choice(&self, pool: &str) -> usize {
        self.waiters.iter().filter(|waiter| waiter.pools.first().is_some_and(|first| first == pool)).count()
    }

    /// A tenant without callers in line and no turn ahead is as one that never came.
    fn forget_turns(&mut self) {
        let Self { waiters, last_turns, turn, .. } = self;
        last_turns
            .retain(|tenant, last| *last > *turn && waiters.iter().any(|waiter| waiter.tenant == *tenant));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        name.parse().expect("a tenant's name")
    }

    fn join(queue: &mut Queue, name: &str, pools: &[&str]) -> Place {
        queue.join(&tenant(name), pools.iter().map(|&pool| pool.to_owned()).collect()).expect("room")
    }

    /// One tenant came first with three callers; the other two don't wait behind all of them.
    #[test]
    fn tenants_take_turns() {
        let mut queue = Queue::new(10, 10);
        let [a1, a2, a3] = ["a", "a", "a"].map(|name| join(&mut queue, name, &["p"]));
        let [b1, c1, b2] = ["b", "c", "b"].map(|name| join(&mut queue, name, &["p"]));
        assert_eq!(queue.position(b1), Some(2));
        assert_eq!(queue.position(a3), Some(6));
        let served: Vec<_> = std::iter::from_fn(|| queue.next("p")).collect();
        assert_eq!(served, [a1, b1, c1, a2, b2, a3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn who_served_many_turns_ago_has_no_credit_and_no_debt() {
        let mut queue = Queue::new(10, 10);
        for _ in 0..3 {
            join(&mut queue, "a", &["p"]);
            queue.next("p").expect("one waits");
        }
        let a = join(&mut queue, "a", &["p"]);
        let b = join(&mut queue, "b", &["p"]);
        assert_eq!([queue.next("p"), queue.next("p"), queue.next("p")], [Some(a), Some(b), None]);
        assert!(queue.last_turns.is_empty());
    }

    #[test]
    fn a_sandbox_goes_to_who_can_use_it() {
        let mut queue = Queue::new(10, 10);
        let a = join(&mut queue, "a", &["small", "large"]);
        let b = join(&mut queue, "b", &["large"]);
        assert_eq!((queue.position(a), queue.position(b)), (Some(1), Some(2)));
        assert_eq!(
            (queue.n_first_choice("large"), queue.wants("small"), queue.wants("other")),
            (1, true, false)
        );
        assert_eq!(queue.next("other"), None);
        assert_eq!([queue.next("large"), queue.next("large")], [Some(a), Some(b)]);
    }

    #[test]
    fn the_line_is_bounded_for_all_and_for_each_tenant() {
        let mut queue = Queue::new(3, 2);
        join(&mut queue, "a", &["p"]);
        let left = join(&mut queue, "a", &["p"]);
        assert_eq!(queue.join(&tenant("a"), vec![]), Err(Full { n_waiting: 2 }));
        join(&mut queue, "b", &["p"]);
        assert_eq!(queue.join(&tenant("c"), vec![]), Err(Full { n_waiting: 3 }));
        queue.leave(left);
        assert_eq!((queue.position(left), queue.waiters.len()), (None, 2));
        join(&mut queue, "c", &["p"]);
    }

    proptest! {
        /// All at once or one by one, everybody is told the same place.
        #[test]
        fn positions_are_the_same_however_they_are_asked_for(
            joins in prop::collection::vec((0usize..3, 1usize..8), 0..40),
        ) {
            let mut queue = Queue::new(100, 100);
            for (who, wanted) in joins {
                let pools: Vec<_> =
                    ["p", "q", "r"].into_iter().enumerate().filter(|(n, _)| wanted & (1 << n) != 0).collect();
                let pools: Vec<_> = pools.into_iter().map(|(_, pool)| pool).collect();
                join(&mut queue, ["a", "b", "c"][who], &pools);
            }
            for (place, position, _) in queue.positions() {
                prop_assert_eq!(queue.position(place), Some(position));
            }
        }

        /// While two tenants both wait, neither is served twice more than the other, and each in order.
        #[test]
        fn nobody_is_served_twice_in_a_row_before_another(joins in prop::collection::vec(0usize..4, 1..60)) {
            let mut queue = Queue::new(100, 100);
            let names = ["a", "b", "c", "d"];
            let mut waiting: [Vec<Place>; 4] = Default::default();
            for &who in &joins {
                waiting[who].push(join(&mut queue, names[who], &["p"]));
            }
            let mut served = [0usize; 4];
            while let Some(place) = queue.next("p") {
                let who = waiting.iter().position(|places| places.contains(&place)).expect("it joined");
                prop_assert_eq!(waiting[who][served[who]], place, "in order");
                for other in 0..4 {
                    if served[other] < waiting[other].len() {
                        prop_assert!(served[who] <= served[other], "{} before {}", who, other);
                    }
                }
                served[who] += 1;
            }
            prop_assert_eq!(served.iter().sum::<usize>(), joins.len());
        }
    }
}
