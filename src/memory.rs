//! An allocator for programs: large blocks are kept for the next tensor of their size.
//!
//! A forward pass makes hundreds of feature maps of up to 56 MB, and drops each a few layers later. Allocators hand blocks
//! of this size back to the operating system, which clears every page again before the next map can use it: 10 to 15 % of
//! a forward pass, and more in virtual machines, whose hosts take the pages away as well. Which allocator a process
//! has is its program's choice, not a library's, so this one works only where a program asks for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks from this size on are kept; smaller ones are the system allocator's.
const LARGE: usize = 256 << 10;
/// Size classes per doubling: a block is at most an eighth larger than what was asked for, and the excess is not touched.
const CLASSES_PER_DOUBLING: usize = 8;
/// What is held beyond the most that was in use at once, as a share of it: blocks of sizes that are not needed at the same
/// time can't stand in for each other. Without, a forward pass would give back and ask for 120 MB.
const SURPLUS_SHARE: usize = 8;
/// Most blocks that are kept.
const SLOTS: usize = 256;

/// The system's allocator, except that freed blocks of 256 KiB and more are kept for reuse.
///
/// Blocks in use and kept ones together exceed the most that was in use at once by an eighth at most, so that the peak
/// of a process is close to what it would be anyway. Memory that is kept is not given back before the process ends; a
/// program that detects once and then does other things may prefer the system's allocator.
///
/// # Example
/// ```
/// #[global_allocator]
/// static ALLOCATOR: candle_detection::memory::ReusingAllocator =
///     candle_detection::memory::ReusingAllocator::new();
///
/// let first = vec![1u8; 1 << 20];
/// let place = first.as_ptr();
/// drop(first);
/// let second = vec![0u8; 1 << 20];
/// assert_eq!(second.as_ptr(), place);
/// ```
#[derive(Debug)]
pub struct ReusingAllocator {
    kept: Mutex<Kept>,
}

impl ReusingAllocator {
    /// An allocator that has kept nothing yet.
    pub const fn new() -> Self {
        Self { kept: Mutex::new(Kept::new()) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    /// As for [`GlobalAlloc::alloc`]; the layout is that of a large block.
    unsafe fn alloc_large(&self, layout: Layout, content: Content) -> *mut u8 {
        let class = class(layout);
        let kept = self.kept().take(class);
        if let Some(place) = kept {
            if content == Content::Zeros {
                // SAFETY: the block has at least the layout's size.
                unsafe { place.write_bytes(0, layout.size()) };
            }
            return place;
        }
        self.kept().note(class);
        loop {
            let surplus = self.kept().surplus();
            if surplus.count == 0 {
                break;
            }
            surplus.release();
        }
        let place = pages::map(class);
        if place.is_null() {
            self.kept().live -= class.size();
        }
        place
    }
}

impl Default for ReusingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: small blocks are the system allocator's from beginning to end. A large block is mapped with the layout of its class, which follows from the layout that users state when they allocate and free; `Kept` holds only
// freed blocks, and hands each out once, for the layout that it was allocated with.
unsafe impl GlobalAlloc for ReusingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's promises.
        unsafe {
            if layout.size() < LARGE {
                return System.alloc(layout);
            }
            self.alloc_large(layout, Content::Any)
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's promises.
        unsafe {
            if layout.size() < LARGE {
                return System.alloc_zeroed(layout);
            }
            self.alloc_large(layout, Content::Zeros)
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if layout.size() < LARGE {
            // SAFETY: by the caller's promises; a block of this size is the system's.
            return unsafe { System.dealloc(place, layout) };
        }
        let replaced = self.kept().put(Block { place: place as usize, layout: class(layout) });
        replaced.release();
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: by the caller's promises; blocks don't overlap, as both are allocated.
        unsafe {
            if layout.size() < LARGE && size < LARGE {
                return System.realloc(place, layout, size);
            }
            let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
                return null_mut();
            };
            let large = layout.size() >= LARGE && size >= LARGE;
            if large && class(wanted) == class(layout) {
                return place;
            }
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(place, layout.size().min(size));
                self.dealloc(place, layout);
            }
            moved
        }
    }
}

/// What a block holds at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Any,
    Zeros,
}

/// The layout that all blocks of a size class have.
fn class(layout: Layout) -> Layout {
    let step = (layout.size().next_power_of_two() / 2 / CLASSES_PER_DOUBLING).max(1);
    let size = layout.size().next_multiple_of(step);
    // A size near the end of the address space has no class; the system refuses it by itself.
    Layout::from_size_align(size, layout.align()).unwrap_or(layout)
}

#[derive(Debug, Clone, Copy)]
struct Block {
    /// An address rather than a pointer, so that threads may share it.
    place: usize,
    layout: Layout,
}

/// Freed blocks, in the order in which they were freed.
#[derive(Debug)]
struct Kept {
    blocks: [Option<Block>; SLOTS],
    count: usize,
    /// Bytes of the blocks.
    bytes: usize,
    /// Bytes of large blocks in use.
    live: usize,
    /// The most that `live` has been.
    peak: usize,
}

impl Kept {
    const fn new() -> Self {
        Self { blocks: [None; SLOTS], count: 0, bytes: 0, live: 0, peak: 0 }
    }

    /// The block of this class that was freed last, whose memory is the likeliest to be in a cache.
    fn take(&mut self, class: Layout) -> Option<*mut u8> {
        let found = |block: &Option<Block>| block.is_some_and(|block| block.layout == class);
        let index = self.blocks[..self.count].iter().rposition(found)?;
        let block = self.remove(index)?;
        self.live += block.layout.size();
        Some(block.place as *mut u8)
    }

    /// Notes a block that the system will be asked for.
    fn note(&mut self, class: Layout) {
        self.live += class.size();
        self.peak = self.peak.max(self.live);
    }

    /// Removes blocks that are too many, oldest first.
    fn surplus(&mut self) -> Surplus {
        let mut surplus = Surplus::default();
        while self.live + self.bytes > self.peak + self.peak / SURPLUS_SHARE
            && surplus.count < surplus.blocks.len()
        {
            let Some(block) = self.remove(0) else { break };
            surplus.push(block);
        }
        surplus
    }

    /// Keeps a block; returns the one that it replaces.
    fn put(&mut self, block: Block) -> Surplus {
        let mut surplus = Surplus::default();
        if self.count == SLOTS
            && let Some(oldest) = self.remove(0)
        {
            surplus.push(oldest);
        }
        self.live -= block.layout.size();
        self.bytes += block.layout.size();
        self.blocks[self.count] = Some(block);
        self.count += 1;
        surplus
    }

    fn remove(&mut self, index: usize) -> Option<Block> {
        if index >= self.count {
            return None;
        }
        let block = self.blocks[index].take()?;
        self.blocks[index..self.count].rotate_left(1);
        self.count -= 1;
        self.bytes -= block.layout.size();
        Some(block)
    }
}

/// Blocks on their way back to the system, which takes long enough to be done without the lock.
#[derive(Default)]
struct Surplus {
    blocks: [Option<Block>; 32],
    count: usize,
}

impl Surplus {
    fn push(&mut self, block: Block) {
        self.blocks[self.count] = Some(block);
        self.count += 1;
    }

    fn release(self) {
        for block in self.blocks.into_iter().flatten() {
            // SAFETY: the block was mapped with this layout, freed, and taken out of `Kept`.
            unsafe { pages::unmap(block.place as *mut u8, block.layout) };
        }
    }
}

/// Zeroed memory straight from the system, which gets back all of it at once. The system's allocator would keep some of
/// what it gets back, too.
#[cfg(target_os = "linux")]
mod pages {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::ptr::null_mut;

    /// The least alignment of a mapping.
    const PAGE: usize = 4096;

    pub fn map(layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            // SAFETY: the size of a class is not zero.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping at a place of the system's choice overlaps nothing.
        let place = unsafe { libc::mmap(null_mut(), layout.size(), access, kind, -1, 0) };
        if place == libc::MAP_FAILED { null_mut() } else { place.cast() }
    }

    /// # Safety
    /// `place` is from `map` with the same layout, and nothing uses it any more.
    pub unsafe fn unmap(place: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promises. Unmapping what was mapped does not fail, except where it splits a mapping that
        // the system has joined and there are too many of them; then the memory stays mapped, which does no harm.
        unsafe {
            if layout.align() > PAGE {
                System.dealloc(place, layout);
            } else {
                libc::munmap(place.cast(), layout.size());
            }
        }
    }
}

/// Zeroed memory from the system's allocator.
#[cfg(not(target_os = "linux"))]
mod pages {
    use std::alloc::{GlobalAlloc, Layout, System};

    pub fn map(layout: Layout) -> *mut u8 {
        // SAFETY: the size of a class is not zero.
        unsafe { System.alloc_zeroed(layout) }
    }

    /// # Safety
    /// `place` is from `map` with the same layout, and nothing uses it any more.
    pub unsafe fn unmap(place: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 4).unwrap()
    }

    /// Frees what a test has left.
    struct Allocated<'a>(&'a ReusingAllocator, *mut u8, Layout);

    impl Drop for Allocated<'_> {
        fn drop(&mut self) {
            // SAFETY: allocated by `allocate`, and freed once.
            unsafe { self.0.dealloc(self.1, self.2) }
        }
    }

    fn allocate(allocator: &ReusingAllocator, size: usize) -> Allocated<'_> {
        // SAFETY: the size is not zero.
        let place = unsafe { allocator.alloc(layout(size)) };
        assert!(!place.is_null());
        Allocated(allocator, place, layout(size))
    }

    #[test]
    fn classes_waste_an_eighth_at_most() {
        for size in [LARGE, LARGE + 1, 3 * MIB - 1, 3 * MIB, 55_705_600, 123_456_789] {
            let class = class(layout(size));
            assert!(class.size() >= size && class.size() <= size + size / 8, "{size}: {class:?}");
            assert_eq!(class, super::class(class));
        }
    }

    #[test]
    fn blocks_come_back_for_sizes_of_their_class() {
        let allocator = ReusingAllocator::new();
        // The larger one goes back to the system in place of the block, whose address nothing else can get then.
        let (larger, block) = (allocate(&allocator, 8 * MIB), allocate(&allocator, 4 * MIB));
        let place = block.1;
        drop(larger);
        drop(block);
        assert_eq!(allocate(&allocator, 4 * MIB - 100).1, place);
        assert_ne!(allocate(&allocator, 2 * MIB).1, place);
        let (first, second) = (allocate(&allocator, 4 * MIB), allocate(&allocator, 4 * MIB));
        assert_ne!(first.1, second.1);
    }

    #[test]
    fn little_more_is_held_than_was_in_use_at_once() {
        let allocator = ReusingAllocator::new();
        drop((allocate(&allocator, 4 * MIB), allocate(&allocator, 4 * MIB)));
        assert_eq!(allocator.kept().bytes, 8 * MIB);
        let other = allocate(&allocator, 6 * MIB);
        let kept = allocator.kept().bytes;
        assert!(kept + 6 * MIB <= 9 * MIB, "{kept}");
        drop(other);
        let kept = allocator.kept();
        assert_eq!((kept.live, kept.bytes, kept.peak), (0, 6 * MIB, 8 * MIB));
    }

    #[test]
    fn zeros_are_zeros_in_used_blocks() {
        let allocator = ReusingAllocator::new();
        let block = allocate(&allocator, MIB);
        // SAFETY: the block has this size.
        unsafe { block.1.write_bytes(7, MIB) };
        drop(block);
        // SAFETY: the size is not zero; the slice covers the block, which is zeroed.
        let place = unsafe { allocator.alloc_zeroed(layout(MIB)) };
        let zeroed = Allocated(&allocator, place, layout(MIB));
        // SAFETY: the block has this size, and is initialized.
        let values = unsafe { std::slice::from_raw_parts(zeroed.1, MIB) };
        assert!(values.iter().all(|value| *value == 0));
    }

    #[test]
    fn content_moves_between_small_and_large() {
        let allocator = ReusingAllocator::new();
        let sizes = [1000, LARGE - 1, LARGE, 3 * LARGE, 3 * LARGE + 5, LARGE + 7, 500];
        // SAFETY: each block is used with the size that it has, and at least 500 bytes of it are initialized.
        unsafe {
            let mut place = allocator.alloc(layout(sizes[0]));
            (0..500).for_each(|i| place.add(i).write(i as u8));
            for pair in sizes.windows(2) {
                place = allocator.realloc(place, layout(pair[0]), pair[1]);
                assert!((0..500).all(|i| place.add(i).read() == i as u8), "{pair:?}");
            }
            allocator.dealloc(place, layout(500));
        }
        let kept = allocator.kept();
        assert_eq!(kept.live, 0);
    }

    #[test]
    fn more_blocks_than_slots_go_back() {
        let allocator = ReusingAllocator::new();
        let blocks: Vec<_> = (0..SLOTS + 9).map(|_| allocate(&allocator, LARGE)).collect();
        drop(blocks);
        let kept = allocator.kept();
        assert_eq!((kept.count, kept.bytes), (SLOTS, SLOTS * LARGE));
    }
}
