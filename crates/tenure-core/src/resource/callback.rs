//! A resource made of functions that somebody else wrote.
//!
//! [`Callbacks`] is the Rust twin of the C vtable (`tenure_resource_vtable`): `libtenure` adapts the one to the other,
//! and a Rust program may implement the trait itself. [`CallbackResource`] stands in front of it and trusts nothing:
//!
//! ```text
//!  allocate   not too deep? -> callback -> null, misaligned, overlapping? -> book
//!                                            refused, given back where that is possible
//!  free       agrees with the book? -> out of the book -> callback -> failed? reported, and the free stands
//! ```
//!
//! # Rules
//! * No lock is held while a callback runs: it may allocate, free, replace the current resource, or raise.
//! * An error of an allocation reaches the caller as it was made, payload included. An error of a deallocation is
//!   reported ([`Callbacks::failed_free`]) and counted, and the block is gone all the same.
//! * A callback that, directly or not, comes back to a callback resource more than [`MAX_DEPTH`] times on one thread
//!   gets an error instead of a stack overflow.
//! * A callback never gets a stream that may be dead: a free with a raw stream out of a buffer's memory waits for the
//!   device and then names the default stream. With a default stream its device is current, whatever the caller's is.
//!
//! # Cost
//! The callback's own, and two locked map operations for an allocation and its free.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;

use tenure_driver::Current;

use crate::device;
use crate::error::{Error, Result};
use crate::resource::book::{Book, Booked};
use crate::resource::{Block, Info, Live, MemoryResource, Properties, Request};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How often callback resources may call each other, or themselves, on one thread.
pub const MAX_DEPTH: u32 = 32;

/// The functions of a user's resource. They may be called from any thread, several at a time.
pub trait Callbacks: Send + Sync + 'static {
    /// A short name for reports, such as `"my_arena"`.
    fn kind(&self) -> &str {
        "callback"
    }

    /// Returns `bytes` bytes aligned to `align` that may be used in the order of `stream`.
    ///
    /// # Errors
    /// Whatever the user wants the caller to see.
    fn allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64>;

    /// Frees a block in the order of `stream`, which is alive during the call.
    ///
    /// # Errors
    /// Reported, not returned to whoever frees.
    fn deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()>;

    /// An allocation usable on any stream at return; `None` when the user gave no such function: then
    /// [`allocate`](Self::allocate) is called and its stream waited for.
    fn allocate_sync(&self, _bytes: usize, _align: usize) -> Option<Result<u64>> {
        None
    }

    /// A free of memory that nothing uses any more; `None` when the user gave no such function.
    fn deallocate_sync(&self, _ptr: u64, _bytes: usize, _align: usize) -> Option<Result<()>> {
        None
    }

    /// Whether memory is the user's resource's, also where it was not handed out through this one; `None` when the user
    /// gave no such function.
    fn owns(&self, _ptr: u64) -> Option<bool> {
        None
    }

    /// The user's own figures; of these the ones about memory in store and reserved are shown.
    fn info(&self) -> Option<Info> {
        None
    }

    /// Gives cached memory back, down to `keep_bytes`; says how many bytes went.
    ///
    /// # Errors
    /// Whatever the user wants the caller to see.
    fn trim(&self, _keep_bytes: usize) -> Result<usize> {
        Ok(0)
    }

    /// Told of a free that the user's function failed. The block counts as freed. By default one line on stderr.
    fn failed_free(&self, ptr: u64, bytes: usize, error: Error) {
        crate::misuse::say(format_args!(
            "tenure: a deallocation callback failed for {ptr:#x} ({bytes} bytes), which counts as freed: {error}"
        ));
    }

    /// The object that the functions belong to, for the face that made it.
    fn context(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// A number that says which face made [`context`](Self::context), so that no other takes it for its own.
    fn face(&self) -> u64 {
        0
    }
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// One level of callbacks on this thread; leaves it when dropped.
struct Level;

impl Level {
    fn enter() -> Result<Self> {
        DEPTH.with(|depth| {
            if depth.get() >= MAX_DEPTH {
                return Err(Error::invalid(format!(
                    "callback resources call each other {MAX_DEPTH} deep on this thread: a callback seems to allocate \
                     from its own resource or through the current one; give it the resource below as an upstream"
                )));
            }
            depth.set(depth.get() + 1);
            Ok(Self)
        })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// A resource over [`Callbacks`].
pub struct CallbackResource {
    callbacks: Box<dyn Callbacks>,
    device: Option<i32>,
    properties: Properties,
    book: Book,
    failed_frees: AtomicU64,
}

impl std::fmt::Debug for CallbackResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallbackResource(device {:?}, {:?})", self.device, self.book)
    }
}

impl CallbackResource {
    /// A resource over `callbacks`, whose memory lies on `device` (`None`: on the device of each stream) and can do what
    /// `properties` say. Calls nothing.
    pub fn new(callbacks: Box<dyn Callbacks>, device: Option<i32>, properties: Properties) -> Self {
        Self { callbacks, device, properties, book: Book::new(), failed_frees: AtomicU64::new(0) }
    }

    /// The object that the functions belong to.
    pub fn context(&self) -> *mut c_void {
        self.callbacks.context()
    }

    /// The functions.
    pub fn callbacks(&self) -> &dyn Callbacks {
        &*self.callbacks
    }

    /// How many frees the user's function has failed.
    pub fn failed_frees(&self) -> u64 {
        self.failed_frees.load(Ordering::Relaxed)
    }

    /// Whether memory is this resource's: in its book, or its user's function says so.
    ///
    /// # Errors
    /// The callbacks are nested too deep.
    pub fn owns(&self, ptr: u64) -> Result<bool> {
        if self.book.find(ptr).is_some() {
            return Ok(true);
        }
        let _level = Level::enter()?;
        Ok(self.callbacks.owns(ptr).unwrap_or(false))
    }

    /// Believes the user's function, or not. `give_back` frees what cannot be handed out.
    fn admit(&self, ptr: u64, request: &Request, home: i32, give_back: impl FnOnce()) -> Result<u64> {
        let wrong = |text: String| {
            Err(Error::Callback(format!("an allocation callback broke its contract: {text}; mend the callback"), None))
        };
        if ptr == 0 {
            return wrong(format!("it returned null for {} bytes and no error", request.bytes));
        }
        if !ptr.is_multiple_of(request.align as u64) {
            give_back();
            return wrong(format!("{ptr:#x} is not aligned to {} bytes; it was given back", request.align));
        }
        if ptr.checked_add(request.bytes as u64).is_none() {
            give_back();
            return wrong(format!("{} bytes at {ptr:#x} pass the end of the address space", request.bytes));
        }
        let device = if self.properties.device_accessible { self.device.unwrap_or(home) } else { -1 };
        let Err(other) = self.book.insert_disjoint(ptr, Booked::new(request, device, home, ptr)) else {
            return Ok(ptr);
        };
        if other.ptr == ptr {
            // Giving it back would free the live block.
            return wrong(format!("it returned {ptr:#x}, which is in use, a second time"));
        }
        give_back();
        wrong(format!(
            "{} bytes at {ptr:#x} overlap the live block of {} bytes at {:#x}; they were given back",
            request.bytes, other.bytes, other.ptr
        ))
    }

    /// The device whose work may use a block that is allocated on `stream`; -1 when there is none.
    fn home(&self, stream: StreamRef<'_>) -> Result<i32> {
        let home = match self.device {
            Some(device) => device::home_of(stream, device).map(|home| home.unwrap_or(device)),
            None => device::home_or_current(stream),
        };
        match (home, self.device) {
            (Ok(home), Some(device)) if home != device && device >= 0 => Err(Error::invalid(format!(
                "the stream belongs to device {home} and this resource to device {device}: use a stream of device \
                 {device}"
            ))),
            (Err(Error::NoDevice(_)), _) => Ok(-1),
            (home, _) => home,
        }
    }

    /// A default stream that a user's function gets is that of `home`: made current, if it is there.
    fn current_for(stream: StreamRef<'_>, home: i32) -> Option<Current> {
        if home < 0 || !stream.raw.is_special() {
            return None;
        }
        device::driver().ok()?.device(home).ok()?.enter().ok()
    }

    fn note_failed(&self, ptr: u64, bytes: usize, error: Error) {
        self.failed_frees.fetch_add(1, Ordering::Relaxed);
        self.callbacks.failed_free(ptr, bytes, error);
    }
}

impl MemoryResource for CallbackResource {
    fn kind(&self) -> &str {
        self.callbacks.kind()
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let home = self.home(stream)?;
        let _level = Level::enter()?;
        let _current = Self::current_for(stream, home);
        let ptr = self.callbacks.allocate(request.bytes, request.align, stream)?;
        self.admit(ptr, request, home, || {
            if let Err(e) = self.callbacks.deallocate(ptr, request.bytes, request.align, stream) {
                self.note_failed(ptr, request.bytes, e);
            }
        })
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        let booked = self.book.check(ptr, request).map_err(Error::Misuse)?;
        let level = Level::enter()?;
        let dead = !stream.is_live();
        if (dead || request.flags & Request::UNPROVEN != 0) && booked.home >= 0 {
            device::settled(device::prove(booked.home))?;
        }
        let booked = self.book.take(ptr, request).map_err(Error::Misuse)?;
        let stream = if dead { StreamRef::DEFAULT } else { stream };
        let _current = Self::current_for(stream, booked.home);
        // With the size and the alignment of the allocation: the user's function need not know other ones.
        let freed = self.callbacks.deallocate(ptr, booked.bytes, booked.align, stream);
        if let Err(e) = freed {
            self.note_failed(ptr, booked.bytes, e);
        }
        drop(level);
        Ok(())
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        let level = Level::enter()?;
        match self.callbacks.allocate_sync(request.bytes, request.align) {
            None => {
                drop(level);
                device::allocate_then_wait(self, request)
            }
            Some(made) => {
                let ptr = made?;
                let home = self.device.or_else(|| device::current().ok()).unwrap_or(-1);
                self.admit(ptr, request, home, || {
                    let freed =
                        self.callbacks.deallocate_sync(ptr, request.bytes, request.align).unwrap_or_else(|| {
                            self.callbacks.deallocate(ptr, request.bytes, request.align, StreamRef::DEFAULT)
                        });
                    if let Err(e) = freed {
                        self.note_failed(ptr, request.bytes, e);
                    }
                })
            }
        }
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        let _level = Level::enter()?;
        let booked = self.book.take(ptr, request).map_err(Error::Misuse)?;
        let freed = self
            .callbacks
            .deallocate_sync(ptr, booked.bytes, booked.align)
            .unwrap_or_else(|| self.callbacks.deallocate(ptr, booked.bytes, booked.align, StreamRef::DEFAULT));
        if let Err(e) = freed {
            self.note_failed(ptr, booked.bytes, e);
        }
        Ok(())
    }

    fn device(&self) -> Option<i32> {
        self.device
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        self.book.find(ptr)
    }

    fn each_block(&self, see: &mut dyn FnMut(Live)) {
        self.book.each_block(see);
    }

    /// What is live is the book's word; what is cached and reserved is the user's, where it says so.
    fn info(&self) -> Info {
        let own = self.book.info();
        let Ok(_level) = Level::enter() else { return own };
        match self.callbacks.info() {
            None => own,
            Some(said) => Info {
                live_bytes: own.live_bytes,
                live_count: own.live_count,
                peak_live_bytes: own.peak_live_bytes,
                reserved_bytes: said.reserved_bytes.max(own.live_bytes),
                peak_reserved_bytes: said.peak_reserved_bytes.max(own.peak_live_bytes),
                ..said
            },
        }
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let _level = Level::enter()?;
        self.callbacks.trim(keep_bytes)
    }

    fn property(&self, name: &str) -> Option<u64> {
        match name {
            "failed_frees" => Some(self.failed_frees()),
            "context" => Some(self.context() as u64),
            _ => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
