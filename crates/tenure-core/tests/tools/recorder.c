/* A tool of NVTX that writes down what it is told. Built by tests/tools.rs; the file to write to is in RECORD.
 *
 *   -DNO_RANGES     without InitializeInjectionNvtx2
 *   -DNO_EXTENSION  without InitializeInjectionNvtxExtension
 *   REFUSE          has "ranges" and "extension" for the entries that say no
 *   NO_SLOTS        the entry of the extension says yes and fills nothing
 *   NO_STRINGS      names cannot be registered
 *   NO_HEAPS        heaps are not taken
 *
 * The declarations are this file's own, after the ABI of NVTX 3; what is handed over is checked against them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        pthread_mutex_lock(&lock);                                                                                     \
        FILE *file = fopen(getenv("RECORD"), "a");                                                                     \
        if (file) {                                                                                                    \
            fprintf(file, __VA_ARGS__);                                                                                \
            fclose(file);                                                                                              \
        }                                                                                                              \
        pthread_mutex_unlock(&lock);                                                                                   \
    } while (0)

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) SAY("wrong %s\n", #condition);                                                               \
    } while (0)

static int set(const char *name)
{
    return getenv(name) != NULL;
}

static int refuses(const char *what)
{
    const char *list = getenv("REFUSE");
    return list && strstr(list, what);
}

/* A library that is opened is heard of, whatever it exports. */
__attribute__((constructor)) static void opened(void)
{
    SAY("opened\n");
}

__attribute__((destructor)) static void closed(void)
{
    SAY("closed\n");
}

/* ------------------------------------------------------------------------------------------------------------ ranges */

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
};

static void *domain_create(const char *name)
{
    SAY("domain %s\n", name);
    return strdup(name);
}

static void *register_string(void *domain, const char *text)
{
    SAY("string %s %s\n", (const char *)domain, text);
    return strdup(text);
}

static int range_push(void *domain, const struct attributes *a)
{
    EXPECT(a->version == 3 && a->size == sizeof *a && a->payload_type == 1);
    EXPECT(a->message_type == (set("NO_STRINGS") ? 1 : 3));
    SAY("push %s %s %llu\n", domain ? (const char *)domain : "?", a->message, (unsigned long long)a->payload);
    return 0;
}

static int range_pop(void *domain)
{
    SAY("pop %s\n", domain ? (const char *)domain : "?");
    return 0;
}

typedef void (*function)(void);

struct callbacks {
    size_t size;
    int (*table)(int module, function ***table, unsigned *size);
};

struct version {
    size_t size;
    uint32_t version, reserved;
    void (*set)(uint32_t version);
};

#ifndef NO_RANGES
int InitializeInjectionNvtx2(const void *(*get)(uint32_t id))
{
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    const struct callbacks *callbacks = get(1);
    const struct version *version = get(3);
    SAY("initialise\n");
    EXPECT(callbacks && callbacks->size == sizeof *callbacks);
    EXPECT(version && version->size == sizeof *version && version->version == 3);
    EXPECT(!get(0) && !get(2) && !get(4));
    version->set(3);
    for (int module = 1; module < 7; module++) {
        function **table = NULL;
        unsigned size = 0;
        EXPECT(callbacks->table(module, &table, &size) == 1 && size == sizes[module]);
        EXPECT(table && !table[0] && !table[size]);
        for (unsigned i = 1; i < size; i++) EXPECT(table[i]);
        if (module == 5) {
            *table[4] = (function)range_push;
            *table[5] = (function)range_pop;
            if (!set("NO_STRINGS")) *table[10] = (function)register_string;
            *table[12] = (function)domain_create;
        }
    }
    EXPECT(callbacks->table(0, NULL, NULL) == 0 && callbacks->table(7, NULL, NULL) == 0 && callbacks->table(-1, NULL, NULL) == 0);
    return !refuses("ranges");
}
#endif

/* ------------------------------------------------------------------------------------------------------------ memory */

struct range {
    size_t size;
    const void *ptr;
};

struct heap {
    uint16_t compatibility, size;
    uint32_t reserved, usage, type;
    size_t specific_size;
    const struct range *specific;
    uint32_t category, message_type;
    const char *message;
};

struct regions {
    uint16_t compatibility, size;
    uint32_t type;
    void *heap;
    size_t count, element_size;
    const struct range *elements;
    void **handles;
};

struct references {
    uint16_t compatibility, size;
    uint32_t type;
    size_t count, element_size;
    const void *const *elements;
};

static void *heap_register(void *domain, const struct heap *h)
{
    (void)domain;
    EXPECT(h->compatibility == 0x102 && h->size == sizeof *h && h->usage == 1 && h->type == 1);
    EXPECT(h->specific_size == sizeof(struct range) && !h->reserved && !h->category && !h->message_type && !h->message);
    if (set("NO_HEAPS")) return NULL;
    SAY("heap %p %zu\n", h->specific->ptr, h->specific->size);
    return (void *)h->specific->ptr;
}

static void heap_unregister(void *domain, void *heap)
{
    (void)domain;
    SAY("noheap %p\n", heap);
}

static void regions_register(void *domain, const struct regions *r)
{
    (void)domain;
    EXPECT(r->compatibility == 0x102 && r->size == sizeof *r && r->type == 1 && !r->handles);
    EXPECT(r->count == 1 && r->element_size == sizeof(struct range));
    SAY("region %p %p %zu\n", r->heap, r->elements->ptr, r->elements->size);
}

static void regions_unregister(void *domain, const struct references *r)
{
    (void)domain;
    EXPECT(r->compatibility == 0x102 && r->size == sizeof *r && r->type == 1);
    EXPECT(r->count == 1 && r->element_size == sizeof(void *));
    SAY("noregion %p\n", r->elements[0]);
}

struct segment {
    size_t id, count;
    intptr_t *slots;
};

struct module {
    uint16_t version, size, id, compatibility;
    size_t count;
    struct segment *segments;
    const void *get, *info;
};

#ifndef NO_EXTENSION
int InitializeInjectionNvtxExtension(struct module *m)
{
    SAY("extension %u\n", m->id);
    EXPECT(m->version == 3 && m->size == sizeof *m && m->id == 1 && m->compatibility == 0x102 && m->count == 1);
    EXPECT(m->segments->id == 1 && m->segments->count == 63 && !m->get && !m->info);
    for (size_t i = 0; i < m->segments->count; i++) EXPECT(!m->segments->slots[i]);
    if (!set("NO_SLOTS")) {
        m->segments->slots[0] = (intptr_t)heap_register;
        m->segments->slots[1] = (intptr_t)heap_unregister;
        m->segments->slots[3] = (intptr_t)regions_register;
        m->segments->slots[5] = (intptr_t)regions_unregister;
    }
    return !refuses("extension");
}
#endif
