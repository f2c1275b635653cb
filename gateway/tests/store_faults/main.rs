//! The store on a disk that fails: at each call in turn the disk is full, writes or reads nothing, tears a write, or loses power.
//!
//! Whatever fails, and however the gateway then ends: what the store acknowledged is there when it is opened again, and what it refused
//! is not. Of what it refused because the disk failed during a `COMMIT`, the last may be there, whole, if nothing was acknowledged after it: the
//! bytes may have reached the disk.

#![expect(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod acts;
mod disk;
mod vfs;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use futures_util::{StreamExt as _, stream};
use packhorse_gateway::store::Store;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqliteConnection};

use acts::{ACTS, Refused, carry_out, furnish};
use disk::{Disk, Fault, FaultKind};
use vfs::mount;

/// The kinds of fault, and whether they last.
const FAULTS: [(FaultKind, bool); 9] = [
    (FaultKind::Full, false),
    (FaultKind::Full, true),
    (FaultKind::Unwritable, false),
    (FaultKind::Unwritable, true),
    (FaultKind::Torn, false),
    (FaultKind::Torn, true),
    (FaultKind::Unreadable, false),
    (FaultKind::Unreadable, true),
    (FaultKind::PowerLoss, true),
];

/// The rows of all tables, as text, without times.
type Rows = BTreeMap<String, Vec<String>>;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_there_after_any_fault_and_what_is_refused_is_not() {
    let base = furnished().await;
    let shadow = Arc::new(Shadow::new(base.clone()));
    let (changes, reads) = calls_of_all_acts(base.clone()).await;
    assert!(
        changes > 100 && reads > 10,
        "{changes} changes, {reads} reads"
    );
    let cases = faults((changes, reads));
    let count = cases.len();
    stream::iter(cases)
        .map(|fault| tokio::spawn(history(base.clone(), fault, Arc::clone(&shadow))))
        .buffer_unordered(4)
        .for_each(async |ended| ended.unwrap())
        .await;
    println!("{count} histories");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_while_the_database_is_opened_loses_nothing() {
    let base = furnished().await;
    let expected = Arc::new(rows(base.clone()).await);
    for (disk, expected) in [(Disk::new(1), None), (base, Some(expected))] {
        let (path, mounted) = mount(disk.clone());
        mounted.with(|disk| disk.plant(never()));
        Store::open(Path::new(&path)).await.unwrap().close().await;
        let calls = mounted.with(|disk| disk.calls());
        stream::iter(faults(calls))
            .map(|fault| tokio::spawn(opening(disk.clone(), fault, expected.clone())))
            .buffer_unordered(4)
            .for_each(async |ended| ended.unwrap())
            .await;
    }
}

/// Opens a database with a fault, then as it is after each way in which that may end.
async fn opening(disk: Disk, fault: Fault, expected: Option<Arc<Rows>>) {
    let (path, mounted) = mount(disk);
    mounted.with(|disk| disk.plant(fault));
    let opened = Store::open(Path::new(&path)).await;
    let ends = mounted.with(|disk| [disk.after_kill(), disk.after_power_loss(fault.at as u64)]);
    if let Ok(store) = opened {
        store.close().await;
    }
    for disk in ends {
        let (path, mounted) = mount(disk);
        let opened = Store::open(Path::new(&path)).await;
        opened
            .unwrap_or_else(|e| panic!("{fault:?}: {e:?}"))
            .close()
            .await;
        if let Some(expected) = &expected {
            let found = rows(mounted.with(|disk| disk.after_kill())).await;
            assert_eq!(found, **expected, "{fault:?}");
        }
    }
}

/// Returns each kind of fault at each of these calls, of those that change something and of those that read.
fn faults((changes, reads): (usize, usize)) -> Vec<Fault> {
    let at_each = |(kind, lasts)| {
        let calls = match kind {
            FaultKind::Unreadable => reads,
            _ => changes,
        };
        (0..calls).map(move |at| Fault { kind, at, lasts })
    };
    FAULTS.into_iter().flat_map(at_each).collect()
}

/// Carries out all acts with a fault, and checks what is there after each way in which that may end.
async fn history(base: Disk, fault: Fault, shadow: Arc<Shadow>) {
    let (path, mounted) = mount(base);
    let store = Store::open(Path::new(&path)).await.unwrap();
    mounted.with(|disk| disk.plant(fault));
    let mut acknowledged = Vec::new();
    let mut uncertain = Vec::new();
    for act in 0..ACTS {
        let before = mounted.with(|disk| disk.calls());
        match carry_out(act, &store).await {
            Ok(()) => {
                acknowledged.push(act);
                // One that found nothing to change has written nothing over what is uncertain.
                if mounted.with(|disk| disk.calls()).0 > before.0 {
                    uncertain.clear();
                }
            }
            Err(Refused::NotStored) => {}
            Err(Refused::Uncertain) => uncertain.push(act),
        }
    }
    let seed = fault.at as u64;
    let (killed, lost, lost_otherwise) = mounted.with(|disk| {
        (
            disk.after_kill(),
            disk.after_power_loss(seed),
            disk.after_power_loss(seed + 1_000_000),
        )
    });
    let mut ends = vec![
        ("kill", killed),
        ("power loss", lost),
        ("another power loss", lost_otherwise),
    ];
    if fault.kind == FaultKind::PowerLoss {
        ends.remove(0);
    }
    for (end, disk) in ends {
        let found = rows(disk).await;
        shadow
            .check(
                &found,
                &acknowledged,
                &uncertain,
                &format!("{fault:?}, {end}"),
            )
            .await;
    }
    if fault.kind != FaultKind::PowerLoss {
        // The disk works again, and with it the store, without a restart.
        mounted.with(Disk::mend);
        for act in [3, 14] {
            let done = carry_out(act, &store).await;
            assert_eq!(done, Ok(()), "{fault:?}: the store does not work again");
            acknowledged.push(act);
        }
    }
    store.close().await;
    if fault.kind != FaultKind::PowerLoss {
        let found = rows(mounted.with(|disk| disk.after_kill())).await;
        let what = format!("{fault:?}, closed");
        shadow.check(&found, &acknowledged, &[], &what).await;
    }
}

/// A store on a disk that works, which does what was acknowledged.
struct Shadow {
    base: Disk,
    known: Mutex<BTreeMap<Vec<usize>, Arc<Rows>>>,
}

impl Shadow {
    fn new(base: Disk) -> Self {
        Self {
            base,
            known: Mutex::default(),
        }
    }

    /// Checks that the rows are those that these acts leave, or those with one of the uncertain acts after them.
    async fn check(&self, found: &Rows, acts: &[usize], uncertain: &[usize], what: &str) {
        let expected = self.rows_after(acts.to_vec()).await;
        if *found == *expected {
            return;
        }
        for act in uncertain {
            let mut acts = acts.to_vec();
            acts.push(*act);
            if *found == *self.rows_after(acts).await {
                return;
            }
        }
        for (table, rows) in found {
            assert_eq!(
                Some(rows),
                expected.get(table),
                "{what}: {table} after {acts:?}; uncertain {uncertain:?}"
            );
        }
        panic!("{what}: a table is missing");
    }

    async fn rows_after(&self, acts: Vec<usize>) -> Arc<Rows> {
        if let Some(rows) = self.known.lock().unwrap().get(&acts) {
            return Arc::clone(rows);
        }
        let (path, mounted) = mount(self.base.clone());
        let store = Store::open(Path::new(&path)).await.unwrap();
        for act in &acts {
            assert_eq!(
                carry_out(*act, &store).await,
                Ok(()),
                "act {act} of {acts:?}"
            );
        }
        store.close().await;
        let rows = Arc::new(rows(mounted.with(|disk| disk.after_kill())).await);
        let mut known = self.known.lock().unwrap();
        Arc::clone(known.entry(acts).or_insert(rows))
    }
}

/// Returns a disk with the database of a cluster.
async fn furnished() -> Disk {
    let (path, mounted) = mount(Disk::new(0));
    let store = Store::open(Path::new(&path)).await.unwrap();
    furnish(&store).await.unwrap();
    store.close().await;
    mounted.with(|disk| disk.after_kill())
}

/// Returns the numbers of calls that all acts make, of those that change something and of those that read.
async fn calls_of_all_acts(base: Disk) -> (usize, usize) {
    let (path, mounted) = mount(base);
    let store = Store::open(Path::new(&path)).await.unwrap();
    mounted.with(|disk| disk.plant(never()));
    for act in 0..ACTS {
        assert_eq!(carry_out(act, &store).await, Ok(()), "act {act}");
    }
    let calls = mounted.with(|disk| disk.calls());
    store.close().await;
    calls
}

fn never() -> Fault {
    Fault {
        kind: FaultKind::Full,
        at: usize::MAX,
        lasts: false,
    }
}

/// Reads what is in the database of a disk.
async fn rows(disk: Disk) -> Rows {
    let (path, _mounted) = mount(disk);
    let mut database = SqliteConnection::connect(&format!("sqlite://{path}"))
        .await
        .unwrap();
    let integrity = sqlx::query("PRAGMA integrity_check")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(integrity.get::<String, _>(0), "ok");
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY name";
    let tables = sqlx::query(tables).fetch_all(&mut database).await.unwrap();
    let mut all = Rows::new();
    for table in tables {
        let table: String = table.get(0);
        let columns = format!(
            "SELECT name FROM pragma_table_info('{table}') WHERE name NOT LIKE '%\\_ms' ESCAPE '\\'"
        );
        let columns = sqlx::query(AssertSqlSafe(columns))
            .fetch_all(&mut database)
            .await
            .unwrap();
        let columns: Vec<String> = columns
            .iter()
            .map(|column| format!("quote({})", column.get::<String, _>(0)))
            .collect();
        let rows = format!(
            "SELECT {} AS line FROM {table} ORDER BY line",
            columns.join(" || ',' || ")
        );
        let rows = sqlx::query(AssertSqlSafe(rows))
            .fetch_all(&mut database)
            .await
            .unwrap();
        all.insert(table, rows.iter().map(|row| row.get(0)).collect());
    }
    database.close().await.unwrap();
    all
}
