/* A cache of rows that are on disk, in memory that the processes of a host may share.
 *
 * Sets of 8 rows, chosen by a hash of the id. Readers take no lock: they copy a row, and take it if the sequence number
 * of its set is the same before and after. A writer owns a set while it changes it; a set whose owner has died is taken
 * over by the next writer, and emptied. No row leaves the cache for one that is asked for less often (TinyLFU: Einziger,
 * Friedman and Manes 2017, "TinyLFU: a highly efficient cache admission policy"): counters, one a row of the table or
 * fewer, count what is asked for, and are halved in turn as time goes on.
 *
 * Rows belong to a generation, a number that grows. Readers and writers of another generation than the current one find
 * nothing and leave nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAYS = 8, FAR_AHEAD = 16, AHEAD = 8, WINDOW = 40, MOST = 255, PID_BITS = 22, BIRTHS = 1023, PATIENCE = 1000 };

struct set {
    _Atomic uint32_t sequence, owner; /* odd: being changed; the process that changes it, see `process_name` */
    _Atomic uint32_t tags[WAYS];      /* id + 1; 0: empty */
};

struct cache {
    int64_t sets, width, stride, counters, rows;
    _Atomic uint64_t generation, aged, asked;
    int64_t sets_at, counters_at, data_at;
};

static inline struct set *set_at(struct cache *cache, int64_t set) {
    return (struct set *)((char *)cache + cache->sets_at) + set;
}

static inline uint8_t *row_of(struct cache *cache, int64_t set, int way) {
    return (uint8_t *)cache + cache->data_at + (set * WAYS + way) * cache->stride;
}

static inline _Atomic uint8_t *counters_of(struct cache *cache) {
    return (_Atomic uint8_t *)((char *)cache + cache->counters_at);
}

static inline uint64_t mixed(uint64_t id) {
    id ^= id >> 33;
    id *= 0xff51afd7ed558ccdull;
    id ^= id >> 33;
    id *= 0xc4ceb9fe1a85ec53ull;
    return id ^ id >> 33;
}

static inline int64_t set_of(const struct cache *cache, int64_t id) {
    return (int64_t)((unsigned __int128)mixed((uint64_t)id) * (uint64_t)cache->sets >> 64);
}

/* One of the two counters of a row; where each row of the table has its own, both are that. */
static inline _Atomic uint8_t *counter_of(struct cache *cache, int64_t id, uint64_t which) {
    if (cache->counters == cache->rows) return counters_of(cache) + id;
    uint64_t hash = mixed((uint64_t)id ^ (which ? 0x9e3779b97f4a7c15ull : 0xd1b54a32d192ed03ull));
    return counters_of(cache) + (int64_t)((unsigned __int128)hash * (uint64_t)cache->counters >> 64);
}

static inline uint32_t asked_for(struct cache *cache, int64_t id) {
    uint32_t one = atomic_load_explicit(counter_of(cache, id, 0), memory_order_relaxed);
    uint32_t other = atomic_load_explicit(counter_of(cache, id, 1), memory_order_relaxed);
    return one < other ? one : other;
}

static inline void count(struct cache *cache, int64_t id, uint32_t more) {
    uint32_t sum = asked_for(cache, id) + more;
    uint8_t least = (uint8_t)(sum > MOST ? MOST : sum);
    for (uint64_t which = 0; which < 2; which++) { /* the lesser one grows, so that others count less of this row */
        _Atomic uint8_t *counter = counter_of(cache, id, which);
        if (atomic_load_explicit(counter, memory_order_relaxed) < least)
            atomic_store_explicit(counter, least, memory_order_relaxed);
    }
}

/* Halves counters, each once in WINDOW times as many look-ups as the cache has rows. */
static void age(struct cache *cache, int64_t lookups) {
    int64_t window = WINDOW * WAYS * cache->sets;
    uint64_t before = atomic_fetch_add_explicit(&cache->asked, (uint64_t)lookups, memory_order_relaxed);
    uint64_t after = before + (uint64_t)lookups;
    uint64_t first = (uint64_t)((unsigned __int128)before * (uint64_t)cache->counters / (uint64_t)window);
    uint64_t end = (uint64_t)((unsigned __int128)after * (uint64_t)cache->counters / (uint64_t)window);
    _Atomic uint8_t *counters = counters_of(cache);
    for (uint64_t at = first; at < end; at++) {
        _Atomic uint8_t *counter = counters + at % (uint64_t)cache->counters;
        atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) / 2, memory_order_relaxed);
    }
}

/* Begins a cache in memory of zeros, which begins at a page. */
void zs_cache_begin(struct cache *cache, int64_t sets, int64_t width, int64_t stride, int64_t counters, int64_t rows) {
    cache->sets = sets, cache->width = width, cache->stride = stride, cache->counters = counters, cache->rows = rows;
    cache->sets_at = 4096;
    cache->counters_at = cache->sets_at + sets * (int64_t)sizeof(struct set);
    cache->data_at = (cache->counters_at + counters + 63) / 64 * 64;
    atomic_store(&cache->generation, 1);
}

uint64_t zs_cache_generation(struct cache *cache) { return atomic_load(&cache->generation); }

/* Asks the processor for a row whose set it has by now. */
static void prefetch_row(struct cache *cache, int64_t id) {
    int64_t at = set_of(cache, id);
    struct set *set = set_at(cache, at);
    uint32_t tag = (uint32_t)(id + 1);
    for (int way = 0; way < WAYS; way++)
        if (atomic_load_explicit(&set->tags[way], memory_order_relaxed) == tag) {
            const uint8_t *row = row_of(cache, at, way);
            for (int64_t byte = 0; byte < cache->width; byte += 64) __builtin_prefetch(row + byte);
            __builtin_prefetch(row + cache->width - 1);
        }
}

/* Copies the rows of the cache to `out`, one behind the other; returns how many are missing, whose places are listed. */
int64_t zs_cache_read(struct cache *cache, uint64_t generation, int64_t number, const int64_t *ids, uint8_t *out,
                      int64_t *missing) {
    int64_t lost = 0;
    size_t width = (size_t)cache->width;
    for (int64_t i = 0; i < number; i++) {
        if (i + FAR_AHEAD < number) {
            int64_t later = ids[i + FAR_AHEAD];
            __builtin_prefetch(set_at(cache, set_of(cache, later)));
            __builtin_prefetch((const void *)counter_of(cache, later, 0));
            __builtin_prefetch((const void *)counter_of(cache, later, 1));
        }
        if (i + AHEAD < number) prefetch_row(cache, ids[i + AHEAD]);
        count(cache, ids[i], 1);
        int64_t at = set_of(cache, ids[i]);
        struct set *set = set_at(cache, at);
        uint32_t tag = (uint32_t)(ids[i] + 1);
        uint32_t before = atomic_load_explicit(&set->sequence, memory_order_acquire);
        int found = -1;
        for (int way = 0; way < WAYS; way++)
            if (atomic_load_explicit(&set->tags[way], memory_order_relaxed) == tag) found = way;
        if (found >= 0 && !(before & 1)) {
            memcpy(out + i * (int64_t)width, row_of(cache, at, found), width);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&set->sequence, memory_order_relaxed) == before &&
                atomic_load_explicit(&cache->generation, memory_order_relaxed) == generation)
                continue;
        }
        missing[lost++] = i;
    }
    age(cache, number);
    return lost;
}

/* When a process began, in clock ticks, as a number from 1 to BIRTHS; 0: the system does not tell; -1: it has ended. */
static int birth_of(pid_t process) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = 0;
    char *at = strrchr(text, ')'); /* the end of the program's name, which may have spaces; the state follows */
    if (!at || at[1] != ' ') return 0;
    if (at[2] == 'Z' || at[2] == 'X') return -1;
    for (int field = 3; field <= 22 && at; field++) at = strchr(at + 1, ' ');
    return at ? (int)(strtoull(at, NULL, 10) % BIRTHS) + 1 : 0;
}

/* What names this process: its number and when it began, as a number may be given again. Never 0. */
static uint32_t process_name(void) {
    static _Thread_local uint32_t name;
    static _Thread_local pid_t of;
    pid_t now = getpid();
    if (of != now) {
        int birth = birth_of(now);
        name = (uint32_t)now | (uint32_t)(birth > 0 ? birth : 0) << PID_BITS;
        of = now;
    }
    return name;
}

/* Whether a process has ended, as far as its number tells: another may have it by now. */
static int is_gone(uint32_t owner) { return kill((pid_t)(owner & ((1u << PID_BITS) - 1)), 0) != 0 && errno == ESRCH; }

/* Whether a process has ended, also if its number was given again; it reads a file of the system. */
static int has_ended(uint32_t owner) {
    if (is_gone(owner)) return 1;
    int birth = birth_of((pid_t)(owner & ((1u << PID_BITS) - 1))), noted = (int)(owner >> PID_BITS);
    return birth < 0 || (birth && noted && birth != noted);
}

/* Takes a set; returns 0 if another thread has it. One that a process left when it died is emptied.
 *
 * `ended` tells whether the owner has. Whoever cannot wait asks `is_gone`, which misses a number that was given again.
 */
static int take(struct set *set, uint32_t me, int (*ended)(uint32_t)) {
    uint32_t owner = 0;
    if (atomic_compare_exchange_strong_explicit(&set->owner, &owner, me, memory_order_acquire, memory_order_relaxed)) {
        uint32_t now = atomic_load_explicit(&set->sequence, memory_order_relaxed);
        atomic_store_explicit(&set->sequence, now + 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        return 1;
    }
    if (owner == me || !ended(owner)) return 0;
    if (!atomic_compare_exchange_strong_explicit(&set->owner, &owner, me, memory_order_acquire, memory_order_relaxed))
        return 0;
    uint32_t now = atomic_load_explicit(&set->sequence, memory_order_relaxed);
    atomic_store_explicit(&set->sequence, (now | 1) + 2, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int way = 0; way < WAYS; way++) atomic_store_explicit(&set->tags[way], 0, memory_order_relaxed);
    return 1;
}

static void give(struct set *set) {
    uint32_t now = atomic_load_explicit(&set->sequence, memory_order_relaxed);
    atomic_store_explicit(&set->sequence, now + 1, memory_order_release);
    atomic_store_explicit(&set->owner, 0, memory_order_release);
}

/* Keeps rows, which stand one behind the other, if they are asked for as often as those that are there. */
void zs_cache_put(struct cache *cache, uint64_t generation, int64_t number, const int64_t *ids, const uint8_t *rows) {
    uint32_t me = process_name();
    for (int64_t i = 0; i < number; i++) {
        int64_t at = set_of(cache, ids[i]);
        struct set *set = set_at(cache, at);
        uint32_t tag = (uint32_t)(ids[i] + 1), least = UINT32_MAX;
        int way = -1, is_free = 0;
        for (int each = 0; each < WAYS; each++) { /* without the lock: most rows do not get further */
            uint32_t there = atomic_load_explicit(&set->tags[each], memory_order_relaxed);
            if (there == tag || there == 0) {
                if (there == tag || !is_free) way = each;
                is_free = 1;
                if (there == tag) break;
            } else if (!is_free) {
                uint32_t often = asked_for(cache, (int64_t)there - 1);
                if (often < least) least = often, way = each;
            }
        }
        if (!is_free && asked_for(cache, ids[i]) < least) continue;
        if (!take(set, me, is_gone)) continue;
        int is_current = atomic_load(&cache->generation) == generation;
        int elsewhere = 0; /* another thread may have kept it meanwhile */
        for (int each = 0; each < WAYS; each++)
            elsewhere |= each != way && atomic_load_explicit(&set->tags[each], memory_order_relaxed) == tag;
        if (is_current && !elsewhere) {
            atomic_store_explicit(&set->tags[way], tag, memory_order_relaxed);
            memcpy(row_of(cache, at, way), rows + i * cache->width, (size_t)cache->width);
        }
        give(set);
    }
}

static void forget(struct set *set, uint32_t tag) {
    uint32_t me = process_name();
    for (int tries = 1; !take(set, me, tries % PATIENCE ? is_gone : has_ended); tries++) sched_yield();
    for (int way = 0; way < WAYS; way++)
        if (tag == 0 || atomic_load_explicit(&set->tags[way], memory_order_relaxed) == tag)
            atomic_store_explicit(&set->tags[way], 0, memory_order_relaxed);
    give(set);
}

/* Begins a generation, unless it or a later one has begun, and forgets rows that are others in it; a negative number of
 * rows: all. */
void zs_cache_advance(struct cache *cache, uint64_t generation, int64_t number, const int64_t *ids) {
    uint64_t now = atomic_load(&cache->generation);
    while (now < generation && !atomic_compare_exchange_weak(&cache->generation, &now, generation)) {}
    if (number < 0)
        for (int64_t at = 0; at < cache->sets; at++) forget(set_at(cache, at), 0);
    for (int64_t i = 0; i < number; i++) forget(set_at(cache, set_of(cache, ids[i])), (uint32_t)(ids[i] + 1));
}

/* Notes how often rows 0, 1, ... of the table were asked for before, at `scale` of that. */
void zs_cache_expect(struct cache *cache, int64_t number, const int64_t *counts, double scale) {
    for (int64_t id = 0; id < number; id++)
        if (counts[id]) count(cache, id, (uint32_t)(scale * (double)counts[id] < MOST ? scale * (double)counts[id] + 0.5 : MOST));
}

/* Two sums over the ids of each bag that do not depend on their order, and one that does, in out[3 b], ... */
void zs_bag_keys(int64_t bags, const int64_t *ids, const int64_t *offsets, const uint64_t *secret, uint64_t *out) {
    for (int64_t b = 0; b < bags; b++) {
        uint64_t first = mixed((uint64_t)(offsets[b + 1] - offsets[b]) ^ secret[0]), second = 0, ordered = 0;
        for (int64_t i = offsets[b]; i < offsets[b + 1]; i++) {
            uint64_t one = mixed((uint64_t)ids[i] ^ secret[0]), other = mixed((uint64_t)ids[i] + secret[1]);
            first += mixed(one + secret[1]), second += mixed(other ^ one);
            ordered = mixed(ordered * 0x9e3779b97f4a7c15ull + one);
        }
        out[3 * b] = first, out[3 * b + 1] = second, out[3 * b + 2] = ordered;
    }
}
