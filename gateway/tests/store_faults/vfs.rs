//! SQLite's layer of files, on disks in memory: `sqlite3_vfs`, registered as the default of this process, so that the store opens its
//! database as it always does. A file `/7/packhorse.db` is on disk 7.
//!
//! This is the only place outside the shim and `crates/mapped` with `unsafe`, and it is in tests only: SQLite is C and calls functions with raw
//! pointers. Each of them converts its pointers and leaves everything else to `disk`, which is safe.

#![expect(
    unsafe_code,
    reason = "SQLite calls its layer of files through C functions with raw pointers"
)]

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_char, c_int, c_void},
    ptr, slice,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use libsqlite3_sys::{
    SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_FULL, SQLITE_IOCAP_POWERSAFE_OVERWRITE,
    SQLITE_IOERR_CLOSE, SQLITE_IOERR_DELETE, SQLITE_IOERR_FSTAT, SQLITE_IOERR_FSYNC,
    SQLITE_IOERR_READ, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_SHORT_READ, SQLITE_IOERR_TRUNCATE,
    SQLITE_IOERR_WRITE, SQLITE_NOTFOUND, SQLITE_OK, SQLITE_OPEN_CREATE, SQLITE_OPEN_DELETEONCLOSE,
    SQLITE_SHM_EXCLUSIVE, SQLITE_SHM_LOCK, sqlite3_file, sqlite3_int64, sqlite3_io_methods,
    sqlite3_vfs, sqlite3_vfs_find, sqlite3_vfs_register,
};

use crate::disk::{Disk, DiskError, Locks};

/// The disks of this process by number.
static DISKS: Mutex<BTreeMap<u64, Mounted>> = Mutex::new(BTreeMap::new());

/// A disk that is in use.
type Mounted = Arc<Mutex<Computer>>;

/// A disk, and the locks of its files, which a restart releases.
#[derive(Debug)]
pub(crate) struct Computer {
    pub(crate) disk: Disk,
    locks: BTreeMap<String, Locks>,
    next_user: u64,
}

/// Gives SQLite a disk. Returns the path of a database on it, and the disk.
pub(crate) fn mount(disk: Disk) -> (String, MountedDisk) {
    // A number is used once: connections to a disk that is gone may still remove files by their paths.
    static NEXT: AtomicU64 = AtomicU64::new(0);

    register();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let computer = Arc::new(Mutex::new(Computer {
        disk,
        locks: BTreeMap::new(),
        next_user: 0,
    }));
    lock(&DISKS).insert(number, Arc::clone(&computer));
    let mounted = MountedDisk { number, computer };
    (format!("/{number}/packhorse.db"), mounted)
}

/// A disk that SQLite finds until this is dropped.
#[derive(Debug)]
pub(crate) struct MountedDisk {
    number: u64,
    computer: Mounted,
}

impl MountedDisk {
    pub(crate) fn with<T>(&self, use_disk: impl FnOnce(&mut Disk) -> T) -> T {
        use_disk(&mut lock(&self.computer).disk)
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        lock(&DISKS).remove(&self.number);
    }
}

/// An open file, as SQLite has it.
#[repr(C)]
struct OpenFile {
    base: sqlite3_file,
    handle: *mut Handle,
}

/// The state of an open file.
struct Handle {
    computer: Mounted,
    name: String,
    user: u64,
    is_temporary: bool,
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    // Version 2: with shared memory, without mapped files.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(raise_lock),
    xUnlock: Some(lower_lock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(map_shared_memory),
    xShmLock: Some(lock_shared_memory),
    xShmBarrier: Some(shared_memory_barrier),
    xShmUnmap: Some(unmap_shared_memory),
    xFetch: None,
    xUnfetch: None,
};

fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: SQLite returns its own default, which lives as long as the process; what it has of clocks and random numbers is kept.
        // The copy and the name live as long as the process, too.
        unsafe {
            let own = sqlite3_vfs_find(ptr::null());
            let vfs = Box::new(sqlite3_vfs {
                iVersion: 2,
                szOsFile: c_int::try_from(size_of::<OpenFile>()).expect("a few words"),
                pNext: ptr::null_mut(),
                zName: c"disk-in-memory".as_ptr(),
                xOpen: Some(open),
                xDelete: Some(delete),
                xAccess: Some(access),
                xFullPathname: Some(full_pathname),
                ..*own
            });
            assert_eq!(sqlite3_vfs_register(Box::leak(vfs), 1), SQLITE_OK);
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the disk of a path, and the name of the file on it.
fn find(path: &str) -> Option<(Mounted, String)> {
    let (number, name) = path.strip_prefix('/')?.split_once('/')?;
    let computer = lock(&DISKS).get(&number.parse().ok()?).cloned()?;
    Some((computer, name.to_owned()))
}

/// Returns a text of SQLite, if there is one.
///
/// # Safety
/// `text` is null or ends with a zero byte.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok().map(str::to_owned)
}

/// Runs an operation on the computer of an open file.
///
/// # Safety
/// `file` is a file that `open` has opened and `close` has not closed.
unsafe fn with<T>(
    file: *mut sqlite3_file,
    operation: impl FnOnce(&Handle, &mut Computer) -> T,
) -> T {
    // SAFETY: `open` has put a handle there, which only `close` frees.
    let handle = unsafe { &*(*file.cast::<OpenFile>()).handle };
    operation(handle, &mut lock(&handle.computer))
}

/// Returns the result code of a call.
fn code(result: Result<(), DiskError>, failed: c_int) -> c_int {
    match result {
        Ok(()) => SQLITE_OK,
        Err(DiskError::Full) => SQLITE_FULL,
        Err(DiskError::Failed) => failed,
    }
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let file = file.cast::<OpenFile>();
    // SAFETY: SQLite gives room for an `OpenFile`. Without methods it does not close the file.
    unsafe { (*file).base.pMethods = ptr::null() };
    // SAFETY: SQLite's texts end with a zero byte.
    let found = if let Some(path) = unsafe { text_of(name) } {
        find(&path)
    } else {
        // A temporary file; it is on a disk of its own.
        let (_, mounted) = mount(Disk::new(0));
        Some((Arc::clone(&mounted.computer), String::new()))
    };
    let Some((computer, name)) = found else {
        return SQLITE_CANTOPEN;
    };
    let user = {
        let mut computer = lock(&computer);
        let creates = flags & SQLITE_OPEN_CREATE != 0;
        if !creates && !computer.disk.exists(&name) {
            return SQLITE_CANTOPEN;
        }
        let made = computer.disk.create(&name);
        if made.is_err() {
            return code(made, SQLITE_CANTOPEN);
        }
        computer.next_user += 1;
        computer.next_user
    };
    let handle = Box::new(Handle {
        computer,
        name,
        user,
        is_temporary: flags & SQLITE_OPEN_DELETEONCLOSE != 0,
    });
    // SAFETY: as above; `close` frees the handle.
    unsafe {
        (*file).handle = Box::into_raw(handle);
        (*file).base.pMethods = &raw const METHODS;
        if !out_flags.is_null() {
            *out_flags = flags;
        }
    }
    SQLITE_OK
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite's texts end with a zero byte.
    let path = unsafe { text_of(name) };
    let Some((computer, name)) = path.and_then(|path| find(&path)) else {
        return SQLITE_IOERR_DELETE;
    };
    let removed = lock(&computer).disk.remove(&name, sync != 0);
    code(removed, SQLITE_IOERR_DELETE)
}

unsafe extern "C" fn access(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    _: c_int,
    exists: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's texts end with a zero byte.
    let path = unsafe { text_of(name) };
    let found = path.and_then(|path| find(&path));
    let found = found.is_some_and(|(computer, name)| lock(&computer).disk.exists(&name));
    // SAFETY: SQLite gives room for the answer.
    unsafe { *exists = c_int::from(found) };
    SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    into: *mut c_char,
) -> c_int {
    // SAFETY: SQLite's texts end with a zero byte, and `into` has this much room.
    unsafe {
        let bytes = CStr::from_ptr(name).to_bytes_with_nul();
        if bytes.len() > room as usize {
            return SQLITE_CANTOPEN;
        }
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), into, bytes.len());
    }
    SQLITE_OK
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: `open` has opened the file, and SQLite closes it once.
    let handle = unsafe { Box::from_raw((*file.cast::<OpenFile>()).handle) };
    let mut computer = lock(&handle.computer);
    if let Some(locks) = computer.locks.get_mut(&handle.name) {
        locks.lower(handle.user, 0);
        locks.leave_shared_memory(handle.user);
    }
    if handle.is_temporary && computer.disk.remove(&handle.name, false).is_err() {
        return SQLITE_IOERR_CLOSE;
    }
    SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    into: *mut c_void,
    bytes: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: the file is open, and `into` has this much room.
    unsafe {
        let into = slice::from_raw_parts_mut(into.cast::<u8>(), bytes as usize);
        with(file, |handle, computer| {
            match computer.disk.read(&handle.name, at as usize, into) {
                Ok(count) if count == into.len() => SQLITE_OK,
                Ok(_) => SQLITE_IOERR_SHORT_READ,
                Err(_) => SQLITE_IOERR_READ,
            }
        })
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    from: *const c_void,
    bytes: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: the file is open, and `from` has as many bytes.
    unsafe {
        let from = slice::from_raw_parts(from.cast::<u8>(), bytes as usize);
        with(file, |handle, computer| {
            let written = computer.disk.write(&handle.name, at as usize, from);
            code(written, SQLITE_IOERR_WRITE)
        })
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: sqlite3_int64) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        with(file, |handle, computer| {
            let truncated = computer.disk.truncate(&handle.name, length as usize);
            code(truncated, SQLITE_IOERR_TRUNCATE)
        })
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        with(file, |handle, computer| {
            // A sync that finds no room fails as any other.
            let synced = computer.disk.sync(&handle.name);
            code(synced.map_err(|_| DiskError::Failed), SQLITE_IOERR_FSYNC)
        })
    }
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    // SAFETY: the file is open, and there is room for the answer.
    unsafe {
        with(file, |handle, computer| {
            match computer.disk.length(&handle.name) {
                Ok(length) => {
                    *size = i64::try_from(length).unwrap_or(i64::MAX);
                    SQLITE_OK
                }
                Err(_) => SQLITE_IOERR_FSTAT,
            }
        })
    }
}

/// Runs an operation on the locks of an open file.
///
/// # Safety
/// As of `with`.
unsafe fn with_locks<T>(
    file: *mut sqlite3_file,
    operation: impl FnOnce(u64, &mut Locks) -> T,
) -> T {
    // SAFETY: as the caller says.
    unsafe {
        with(file, |handle, computer| {
            let locks = computer.locks.entry(handle.name.clone()).or_default();
            operation(handle.user, locks)
        })
    }
}

unsafe extern "C" fn raise_lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: the file is open.
    let raised = unsafe { with_locks(file, |user, locks| locks.raise(user, level)) };
    if raised { SQLITE_OK } else { SQLITE_BUSY }
}

unsafe extern "C" fn lower_lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with_locks(file, |user, locks| locks.lower(user, level)) };
    SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, answer: *mut c_int) -> c_int {
    // SAFETY: the file is open, and there is room for the answer.
    unsafe { *answer = c_int::from(with_locks(file, |_, locks| locks.is_reserved())) };
    SQLITE_OK
}

unsafe extern "C" fn file_control(_: *mut sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut sqlite3_file) -> c_int {
    // As SQLite's own layer says of Unix: a write changes no byte beside it.
    SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn map_shared_memory(
    file: *mut sqlite3_file,
    piece: c_int,
    bytes: c_int,
    extend: c_int,
    answer: *mut *mut c_void,
) -> c_int {
    // SAFETY: the file is open, and there is room for the answer. A piece stays where it is until nobody uses any.
    unsafe {
        *answer = ptr::null_mut();
        with(file, |handle, computer| {
            let Computer { disk, locks, .. } = computer;
            let locks = locks.entry(handle.name.clone()).or_default();
            locks.use_shared_memory(handle.user);
            let piece = piece as usize;
            while locks.shared_memory.len() <= piece {
                if extend == 0 {
                    return SQLITE_OK;
                }
                if disk.extend_shared_memory().is_err() {
                    return SQLITE_IOERR_SHMSIZE;
                }
                let words = (bytes as usize).div_ceil(size_of::<u64>());
                locks.shared_memory.push(vec![0; words].into());
            }
            *answer = locks.shared_memory[piece].as_mut_ptr().cast();
            SQLITE_OK
        })
    }
}

unsafe extern "C" fn lock_shared_memory(
    file: *mut sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    let slots = first as usize..(first + count) as usize;
    let exclusively = flags & SQLITE_SHM_EXCLUSIVE != 0;
    // SAFETY: the file is open.
    let done = unsafe {
        with_locks(file, |user, locks| {
            if flags & SQLITE_SHM_LOCK != 0 {
                return locks.lock_slots(user, slots, exclusively);
            }
            locks.unlock_slots(user, slots, exclusively);
            true
        })
    };
    if done { SQLITE_OK } else { SQLITE_BUSY }
}

unsafe extern "C" fn shared_memory_barrier(file: *mut sqlite3_file) {
    // SAFETY: the file is open. Taking the lock is a barrier.
    unsafe { with(file, |_, _| ()) };
}

unsafe extern "C" fn unmap_shared_memory(file: *mut sqlite3_file, _: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with_locks(file, |user, locks| locks.leave_shared_memory(user)) };
    SQLITE_OK
}
