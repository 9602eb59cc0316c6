/* mock_backend: an OpenAI-compatible model server that costs next to nothing.
 *
 *   mock_backend PORT            one thread, epoll, 127.0.0.1 only
 *
 * POST /v1/chat/completions    "stream": true gets server-sent events, else one JSON answer
 * GET  /health /v1/models /version
 * GET  /_mock/config?chunks=64&delay_us=10000    shape of the streams from now on
 * GET  /_mock/stats            counters, as JSON
 * GET  /_mock/last             body of the last POST
 *
 * A token event is one HTTP chunk in one send(), as an engine that emits a token at a time
 * would write it. A usage event ("choices":[]) comes before [DONE] only when the request asked
 * for it with stream_options.include_usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_BODY (64L << 20)
#define BATCH 256

typedef struct conn {
    int fd, dead, close_after, want_out;
    char *in;
    size_t in_len, in_cap;
    char *out; /* bytes the socket would not take yet */
    size_t out_len, out_off, out_cap;
    int streaming, with_usage, sent, total;
    uint64_t due;
    struct conn *next, *prev; /* queue of streams, ordered by due */
    int queued;
    struct conn *next_dead;
} conn;

typedef struct {
    char text[2048];
    size_t len;
} blob;

static int ep, chunks = 64;
static long delay_us = 0;
static uint64_t n_chat, n_streams, n_streams_done, n_aborted, n_usage_events;
static char *last_body;
static size_t last_len;
static conn *queue_head, *queue_tail, *graveyard;
static blob answer, first_event, token_event, end_plain, end_with_usage;

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
static const char USAGE[] = "{\"prompt_tokens\":24,\"total_tokens\":88,\"completion_tokens\":64}";

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* ---- the fixed answers, made once ---------------------------------------------------- */

static void add_chunk(blob *b, const char *event) {
    b->len += (size_t)sprintf(b->text + b->len, "%zx\r\n%s\r\n", strlen(event), event);
}

static void add_event(blob *b, const char *choices, const char *usage) {
    char event[800];
    snprintf(event, sizeof event,
             "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\","
             "\"object\":\"chat.completion.chunk\",\"created\":1861920000,\"model\":\"mock-model\","
             "\"choices\":[%s]%s%s}\n\n",
             choices, usage ? ",\"usage\":" : "", usage ? usage : "");
    add_chunk(b, event);
}

static void add_end(blob *b, int with_usage) {
    add_event(b,
              "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
              "\"finish_reason\":\"stop\"}",
              NULL);
    if (with_usage) add_event(b, "", USAGE);
    add_chunk(b, "data: [DONE]\n\n");
    b->len += (size_t)sprintf(b->text + b->len, "0\r\n\r\n");
}

static void build_answers(void) {
    char json[1500];
    int n = snprintf(
        json, sizeof json,
        "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\","
        "\"created\":1861920000,\"model\":\"mock-model\",\"choices\":[{\"index\":0,\"message\":{"
        "\"role\":\"assistant\",\"content\":\"Thank you for asking. Your parcel left the warehouse "
        "this morning and should be with you by Thursday; the courier will ring you half an hour "
        "before. Is there anything else that I can look up for you?\",\"tool_calls\":[]},"
        "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":%s}",
        USAGE);
    answer.len = (size_t)sprintf(answer.text,
                                 "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-length: %d\r\n"
                                 "content-type: application/json\r\n\r\n%s",
                                 n, json);
    add_event(&first_event,
              "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
              "\"finish_reason\":null}",
              NULL);
    add_event(&token_event,
              "{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,"
              "\"finish_reason\":null}",
              NULL);
    add_end(&end_plain, 0);
    add_end(&end_with_usage, 1);
}

/* ---- connections ---------------------------------------------------------------------- */

static void dequeue(conn *c) {
    if (!c->queued) return;
    if (c->prev) c->prev->next = c->next;
    else queue_head = c->next;
    if (c->next) c->next->prev = c->prev;
    else queue_tail = c->prev;
    c->next = c->prev = NULL;
    c->queued = 0;
}

static void enqueue(conn *c, uint64_t due) {
    conn *before = queue_tail;
    while (before && before->due > due) before = before->prev;
    c->due = due;
    c->queued = 1;
    c->prev = before;
    c->next = before ? before->next : queue_head;
    if (c->next) c->next->prev = c;
    else queue_tail = c;
    if (before) before->next = c;
    else queue_head = c;
}

/* Freed only at the end of a turn: epoll may still hold the pointer in this batch. */
static void kill_conn(conn *c) {
    if (c->dead) return;
    if (c->streaming) n_aborted++;
    dequeue(c);
    close(c->fd);
    c->dead = 1;
    c->next_dead = graveyard;
    graveyard = c;
}

static void bury(void) {
    while (graveyard) {
        conn *c = graveyard;
        graveyard = c->next_dead;
        free(c->in);
        free(c->out);
        free(c);
    }
}

static void watch(conn *c, int want_out) {
    uint32_t events = EPOLLIN | EPOLLRDHUP | (want_out ? (uint32_t)EPOLLOUT : 0u);
    struct epoll_event e = {.events = events, .data.ptr = c};
    c->want_out = want_out;
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

static void put(conn *c, const char *bytes, size_t n) {
    if (c->dead) return;
    if (c->out_len == c->out_off) {
        c->out_len = c->out_off = 0;
        ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (sent == (ssize_t)n) return;
        if (sent < 0 && errno != EAGAIN) {
            kill_conn(c);
            return;
        }
        if (sent > 0) bytes += sent, n -= (size_t)sent;
    }
    if (c->out_len + n > c->out_cap) {
        c->out_cap = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, bytes, n);
    c->out_len += n;
    if (!c->want_out) watch(c, 1);
}

static void flush_out(conn *c) {
    ssize_t sent = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
    if (sent > 0) c->out_off += (size_t)sent;
    else if (sent < 0 && errno != EAGAIN) kill_conn(c);
    if (c->dead || c->out_off < c->out_len) return;
    watch(c, 0);
    if (c->close_after && !c->streaming) kill_conn(c);
}

static void reply(conn *c, int status, const char *body, size_t n) {
    char head[200];
    int h = snprintf(head, sizeof head,
                     "HTTP/1.1 %d %s\r\nserver: mock\r\ncontent-length: %zu\r\n"
                     "content-type: application/json\r\n\r\n",
                     status, status == 200 ? "OK" : "Error", n);
    char *whole = malloc((size_t)h + n);
    memcpy(whole, head, (size_t)h);
    memcpy(whole + h, body, n);
    put(c, whole, (size_t)h + n);
    free(whole);
}

/* ---- requests ------------------------------------------------------------------------- */

/* Is there `"name": true` in the JSON text, with any spacing? Good enough for our own bodies. */
static int is_true(const char *body, size_t n, const char *quoted_name) {
    size_t name_len = strlen(quoted_name);
    const char *end = body + n, *p = body;
    while ((p = memmem(p, (size_t)(end - p), quoted_name, name_len))) {
        p += name_len;
        while (p < end && (*p == ' ' || *p == ':')) p++;
        if (end - p >= 4 && !memcmp(p, "true", 4)) return 1;
    }
    return 0;
}

static long argument(const char *line, const char *key, long otherwise) {
    const char *found = strstr(line, key);
    return found ? atol(found + strlen(key)) : otherwise;
}

/* Sends the event that is due and queues the next one. */
static void stream_step(conn *c, uint64_t now) {
    if (c->out_len > c->out_off) { /* a slow reader: let it catch up */
        enqueue(c, now + 1000);
        return;
    }
    int last = c->sent == c->total;
    const blob *event = c->sent == 0 ? &first_event : &token_event;
    if (last) event = c->with_usage ? &end_with_usage : &end_plain;
    put(c, event->text, event->len);
    if (c->dead) return;
    c->sent++;
    if (!last) {
        enqueue(c, delay_us ? c->due + (uint64_t)delay_us : now);
        return;
    }
    c->streaming = 0;
    n_streams_done++;
    n_usage_events += (uint64_t)c->with_usage;
    if (c->close_after && c->out_len == c->out_off) kill_conn(c);
}

static void chat(conn *c, const char *body, size_t n) {
    n_chat++;
    last_body = realloc(last_body, n + 1);
    memcpy(last_body, body, n);
    last_len = n;
    if (!is_true(body, n, "\"stream\"")) {
        put(c, answer.text, answer.len);
        return;
    }
    n_streams++;
    c->streaming = 1;
    c->sent = 0;
    c->total = chunks;
    c->with_usage = is_true(body, n, "\"include_usage\"");
    put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
    if (c->dead) return;
    c->due = now_us();
    stream_step(c, c->due);
}

static void control(conn *c, const char *path) {
    char text[400];
    if (!strncmp(path, "/_mock/config", 13)) {
        chunks = (int)argument(path, "chunks=", chunks);
        delay_us = argument(path, "delay_us=", delay_us);
        reply(c, 200, "{}", 2);
    } else if (!strcmp(path, "/_mock/last")) {
        reply(c, 200, last_body ? last_body : "", last_len);
    } else {
        int n = snprintf(text, sizeof text,
                         "{\"chat\":%llu,\"streams\":%llu,\"streams_done\":%llu,"
                         "\"streams_aborted\":%llu,\"usage_events\":%llu}",
                         (unsigned long long)n_chat, (unsigned long long)n_streams,
                         (unsigned long long)n_streams_done, (unsigned long long)n_aborted,
                         (unsigned long long)n_usage_events);
        reply(c, 200, text, (size_t)n);
    }
}

static void handle(conn *c, const char *head, const char *body, size_t n) {
    static const char MODELS[] =
        "{\"object\":\"list\",\"data\":[{\"id\":\"mock-model\",\"object\":\"model\","
        "\"created\":1861920000,\"owned_by\":\"mock\",\"max_model_len\":131072}]}";
    static const char VERSION[] = "{\"version\":\"0.0\"}";
    static const char MISSING[] = "{\"error\":{\"message\":\"not found\"}}";
    char method[8] = "", path[300] = "";
    sscanf(head, "%7s %299s", method, path);
    if (!strcmp(method, "POST") && !strcmp(path, "/v1/chat/completions")) chat(c, body, n);
    else if (!strncmp(path, "/_mock/", 7)) control(c, path);
    else if (!strcmp(path, "/health")) reply(c, 200, "{}", 2);
    else if (!strcmp(path, "/v1/models")) reply(c, 200, MODELS, sizeof MODELS - 1);
    else if (!strcmp(path, "/version")) reply(c, 200, VERSION, sizeof VERSION - 1);
    else reply(c, 404, MISSING, sizeof MISSING - 1);
}

static int is_header(const char *line, const char *name) {
    return !strncasecmp(line, name, strlen(name));
}

/* Takes one whole request off the input; 0 when there is none yet. */
static int take_request(conn *c) {
    char *end = c->streaming ? NULL : memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0; /* the head is a C string now; put back when the body is not here yet */
    size_t head_len = (size_t)(end + 4 - c->in);
    long body_len = 0;
    int chunked = 0, closing = 0, expects = 0;
    for (char *line = strstr(c->in, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (is_header(line, "content-length:")) body_len = atol(line + 15);
        else if (is_header(line, "transfer-encoding:")) chunked = 1;
        else if (is_header(line, "connection: close")) closing = 1;
        else if (is_header(line, "expect: 100")) expects = 1;
    }
    if (chunked || body_len < 0 || body_len > MAX_BODY) {
        static const char WHY[] = "{\"error\":{\"message\":\"send a content-length\"}}";
        reply(c, 411, WHY, sizeof WHY - 1);
        kill_conn(c);
        return 0;
    }
    size_t whole = head_len + (size_t)body_len;
    if (c->in_len < whole) {
        *end = '\r';
        if (expects && c->in_len == head_len) put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        if (!c->dead && c->in_cap < whole + 1) c->in = realloc(c->in, c->in_cap = whole + 1);
        return 0;
    }
    if (closing) c->close_after = 1;
    handle(c, c->in, c->in + head_len, (size_t)body_len);
    if (c->dead) return 0;
    memmove(c->in, c->in + whole, c->in_len - whole);
    c->in_len -= whole;
    if (c->close_after && !c->streaming && c->out_len == c->out_off) kill_conn(c);
    return !c->dead;
}

static void accept_some(int listener) {
    for (int k = 0; k < 64; k++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->in = malloc(c->in_cap = 4096);
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
}

static void read_some(conn *c) {
    if (c->in_cap - c->in_len < 2048) c->in = realloc(c->in, c->in_cap *= 2);
    ssize_t got = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        kill_conn(c);
        return;
    }
    if (got > 0) c->in_len += (size_t)got;
    while (take_request(c)) {
    }
}

/* At most one event a stream a turn, so that no stream starves the others. */
static void step_due_streams(void) {
    uint64_t now = now_us();
    conn *last = queue_tail;
    int more = queue_head != NULL;
    while (more && queue_head && queue_head->due <= now) {
        conn *c = queue_head;
        more = c != last;
        dequeue(c);
        stream_step(c, now);
        while (!c->dead && !c->streaming && take_request(c)) {
        }
    }
}

static int listen_on(int port) {
    int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, (void *)&a, sizeof a) || listen(s, 4096)) {
        perror("mock_backend: listen");
        exit(1);
    }
    return s;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: mock_backend PORT\n");
        return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    build_answers();
    ep = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(atoi(argv[1]));
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, events[BATCH];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int timeout = -1;
        if (queue_head) {
            uint64_t now = now_us(), due = queue_head->due;
            timeout = due <= now ? 0 : (int)((due - now + 999) / 1000);
        }
        int n = epoll_wait(ep, events, BATCH, timeout);
        for (int i = 0; i < n; i++) {
            conn *c = events[i].data.ptr;
            if (!c) {
                accept_some(listener);
                continue;
            }
            if (!c->dead && (events[i].events & EPOLLOUT) && c->out_len > c->out_off) flush_out(c);
            if (!c->dead && (events[i].events & ~(uint32_t)EPOLLOUT)) read_some(c);
        }
        step_due_streams();
        bury();
    }
}
