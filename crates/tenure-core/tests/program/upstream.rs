//! An upstream that lies when it is told to. Its memory is the device's, so that the checks see what is done with it.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tenure_core::error::{Error, Result};
use tenure_core::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use tenure_core::stream::StreamRef;

/// What it does at its next call. 0 is honest.
static MANNER: AtomicUsize = AtomicUsize::new(0);
/// How often it has lied.
static LIES: AtomicU64 = AtomicU64::new(0);

/// Manners beyond this number are none.
pub(crate) const MANNERS: u8 = 8;

/// Chooses how it behaves at the next call of any pool's upstream.
pub(crate) fn behave(manner: u8) {
    MANNER.store(usize::from(manner), Ordering::SeqCst);
}

pub(crate) fn lies() -> u64 {
    LIES.load(Ordering::SeqCst)
}

pub(crate) struct Liar {
    inner: Resource,
    /// By the address that was told: the true one, and bytes.
    given: Mutex<BTreeMap<u64, (u64, usize)>>,
}

impl Liar {
    pub(crate) fn over(inner: Resource) -> Resource {
        Resource::new(Self { inner, given: Mutex::default() }).unwrap()
    }

    /// What nobody has given back.
    pub(crate) fn left(resource: &Resource) -> usize {
        resource.downcast::<Self>().map_or(0, |liar| liar.given.lock().unwrap().len())
    }

    fn request(&self, bytes: usize) -> Request {
        Request { bytes, align: 256, owner: self.inner.id(), flags: 0 }
    }
}

impl MemoryResource for Liar {
    fn kind(&self) -> &'static str {
        "liar"
    }
    fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<u64> {
        Err(Error::Internal("a pool takes its chunks on no stream".into()))
    }
    fn deallocate(&self, _: u64, _: &Request, _: StreamRef<'_>) -> Result<()> {
        Err(Error::Internal("a pool gives its chunks back on no stream".into()))
    }
    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        let manner = if MANNER.load(Ordering::SeqCst) == 8 { 0 } else { MANNER.swap(0, Ordering::SeqCst) };
        LIES.fetch_add(u64::from(manner != 0), Ordering::SeqCst);
        let held = self.given.lock().unwrap().iter().next().map(|(told, (_, bytes))| (*told, *bytes));
        match (manner, held) {
            (1, _) => return Err(Error::OutOfMemory(Box::default())),
            (2, _) => return Err(Error::Callback("no luck today".into(), None)),
            (3, _) => return Ok(0),
            (4, _) => return Ok(u64::MAX - 255),
            // The same block twice, and a place inside of one that is held.
            (5, Some((told, _))) => return Ok(told),
            (6, Some((told, bytes))) if bytes > 512 => return Ok(told + 256),
            _ => {}
        }
        let ptr = self.inner.body().allocate_sync(&self.request(request.bytes + 256))?;
        let told = if manner == 7 { ptr + 8 } else { ptr };
        self.given.lock().unwrap().insert(told, (ptr, request.bytes));
        Ok(told)
    }
    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        // The address that it made up comes back: that was not its memory.
        if ptr == u64::MAX - 255 {
            return Ok(());
        }
        if MANNER.load(Ordering::SeqCst) == 8 {
            MANNER.store(0, Ordering::SeqCst);
            LIES.fetch_add(1, Ordering::SeqCst);
            return Err(Error::Callback("no frees today".into(), None));
        }
        let Some((real, bytes)) = self.given.lock().unwrap().remove(&ptr) else {
            return Err(Error::Internal(format!("{ptr:#x} came back and was never given")));
        };
        if bytes != request.bytes {
            return Err(Error::Internal(format!("{bytes} bytes were given, {} come back", request.bytes)));
        }
        self.inner.body().deallocate_sync(real, &self.request(bytes + 256)).inspect_err(|_| {
            self.given.lock().unwrap().insert(ptr, (real, bytes));
        })
    }
    fn device(&self) -> Option<i32> {
        Some(0)
    }
    fn properties(&self) -> Properties {
        self.inner.body().properties()
    }
    fn find(&self, _: u64) -> Option<Block> {
        None
    }
    fn info(&self) -> Info {
        Info::default()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
