-- SPDX-License-Identifier: Apache-2.0
-- Runs the statements of a workload through sysbench: one statement an event, each client its own turn.
-- The files are NUL-separated, because statements have line breaks. In a statement {{uniform A B}} becomes a whole
-- number from A to B, {{again}} the last such number of this client, and {{sequence}} a number that no other event of any
-- run has had. With `transaction` all statements together are one event, asked one after the other; sysbench begins one
-- again that the server ended to resolve a deadlock.

sysbench.cmdline.options = {
   statements = {"file of NUL-separated statements", ""},
   session = {"file of NUL-separated statements that every connection runs first", ""},
   protocol = {"text, prepare-once or prepare-each", "text"},
   reconnect = {"open a connection for every event", false},
   transaction = {"all statements are one event", false},
   unique = {"number that the sequences of this run begin with", 0},
   gate = {"file shared with powerprof, which says by it when to ask (statements run whenever sysbench likes without)", ""},
   pace = {"statements a second that all clients together are to ask while the gate is open (0: as fast as it goes)", 0},
}

local function read_statements(path)
   local found = {}
   if path == "" then return found end
   local file = assert(io.open(path, "rb"))
   local text = file:read("*a")
   file:close()
   for statement in text:gmatch("([^%z]+)") do found[#found + 1] = statement end
   return found
end

local function open_connection()
   local made = drv:connect()
   for _, statement in ipairs(session) do made:query(statement) end
   return made
end

-- The gate. powerprof lets two loads take turns of a fraction of a second, for which --rate and --time are too coarse.
-- The layout of the shared file and the meaning of its words are told in powerprof/experiment/sysbench.py.
-- While the gate is open every client asks at exponentially distributed times of its own, and its latencies count from
-- those times, not from when it got round to asking: an open loop. While it is shut a client sleeps in the kernel.

local FUTEX_WAIT_BITSET, EVERY_BIT = 9, 0xffffffff
local SHUT, OVER = 0, 0xffffffff
local SYS_FUTEX = ({x64 = 202, arm64 = 98})[jit.arch]
local PROT_READ_WRITE, MAP_SHARED, O_RDWR, CLOCK_MONOTONIC = 3, 1, 2, 1
local BUCKETS, FIRST_MS, LAST_MS = 1024, 1e-3, 1e5
local BUCKETS_EACH_E = (BUCKETS - 1) / math.log(LAST_MS / FIRST_MS)
local ffi = require("ffi")

local function map_gate(path, clients)
   ffi.cdef[[
      typedef struct { int64_t s, ns; } pp_timespec;
      typedef struct { uint32_t turn, unused[15]; } pp_gate;
      typedef struct { uint32_t ready, busy; uint64_t done, total_us; uint32_t buckets[1024]; uint32_t failed, unused[9]; }
         pp_client;
      int open(const char *, int);
      void *mmap(void *, size_t, int, int, int, int64_t);
      int clock_gettime(int, pp_timespec *);
      long syscall(long, uint32_t *, int, uint32_t, pp_timespec *, void *, uint32_t);
   ]]
   local fd = ffi.C.open(path, O_RDWR)
   if fd < 0 then error("cannot open the gate") end
   local size = ffi.sizeof("pp_gate") + clients * ffi.sizeof("pp_client")
   local start = ffi.C.mmap(nil, size, PROT_READ_WRITE, MAP_SHARED, fd, 0)
   if ffi.cast("intptr_t", start) == -1 then error("cannot map the gate") end
   local own = ffi.cast("char *", start) + ffi.sizeof("pp_gate") + sysbench.tid * ffi.sizeof("pp_client")
   return ffi.cast("pp_gate *", start), ffi.cast("pp_client *", own)
end

local function now_s()
   ffi.C.clock_gettime(CLOCK_MONOTONIC, clock)
   return tonumber(clock.s) + tonumber(clock.ns) * 1e-9
end

local function interval_s()
   if sysbench.opt.pace == 0 then return 0 end
   return -math.log(1 - sysbench.rand.uniform_double()) * sysbench.opt.threads / sysbench.opt.pace
end

-- Sleeps while the gate's word is `turn`, until `time_s` at the latest.
local function sleep_in_turn(turn, time_s)
   local deadline = nil
   if time_s ~= nil then
      clock.s = math.floor(time_s)
      clock.ns = (time_s - math.floor(time_s)) * 1e9
      deadline = clock
   end
   ffi.C.syscall(SYS_FUTEX, ffi.cast("uint32_t *", gate), FUTEX_WAIT_BITSET, turn, deadline, nil, EVERY_BIT)
end

-- Returns true when it is this client's time to ask, marked busy; false when all is over.
local function await_turn()
   while true do
      local turn = gate.turn
      if turn == OVER then
         return false
      elseif turn == SHUT then
         sleep_in_turn(SHUT, nil)
      else
         if turn ~= my_turn then
            my_turn = turn
            due_s = now_s() + interval_s()
         end
         if now_s() < due_s then
            sleep_in_turn(turn, due_s)
         else
            own.busy = 1
            -- Shut in the meantime? powerprof shuts first and looks who is busy after a system call.
            if gate.turn == turn then return true end
            own.busy = 0
         end
      end
   end
end

local function count_answer()
   local took_ms = (now_s() - due_s) * 1e3
   local bucket = math.floor(math.log(math.max(took_ms, FIRST_MS) / FIRST_MS) * BUCKETS_EACH_E)
   bucket = math.min(bucket, BUCKETS - 1)
   own.buckets[bucket] = own.buckets[bucket] + 1
   own.total_us = own.total_us + took_ms * 1e3
   own.done = own.done + 1
   due_s = sysbench.opt.pace == 0 and now_s() or due_s + interval_s()
   own.busy = 0
end

-- What is prepared: the statement with a ? for each place, and what is bound there.
local function with_marks(statement)
   local places = {}
   local text = statement:gsub("{{(%a+) ?(%-?%d*) ?(%-?%d*)}}", function(word, low, high)
      places[#places + 1] = {word = word, low = tonumber(low), high = tonumber(high)}
      return "?"
   end)
   return text, places
end

local function next_number(place)
   if place.word == "uniform" then last = tostring(sysbench.rand.uniform(place.low, place.high)) end
   if place.word == "uniform" or place.word == "again" then return last end
   counter = counter + 1
   return string.format("%d%04d%08d", sysbench.opt.unique, sysbench.tid, counter)
end

local function prepare(index)
   local made = {statement = con:prepare(marked[index]), parameters = {}}
   for number in ipairs(places[index]) do
      made.parameters[number] = made.statement:bind_create(sysbench.sql.type.BIGINT)
   end
   if #made.parameters > 0 then made.statement:bind_param(unpack(made.parameters)) end
   return made
end

local function execute(made, index)
   for number, place in ipairs(places[index]) do made.parameters[number]:set(tonumber(next_number(place))) end
   made.statement:execute()
end

function thread_init()
   drv = sysbench.sql.driver()
   statements = read_statements(sysbench.opt.statements)
   session = read_statements(sysbench.opt.session)
   has_place, marked, places = {}, {}, {}
   for index, statement in ipairs(statements) do
      has_place[index] = statement:find("{{", 1, true) ~= nil
      marked[index], places[index] = with_marks(statement)
   end
   turn = sysbench.tid % #statements
   counter = 0
   last = "0"
   prepared = {}
   if not sysbench.opt.reconnect then
      con = open_connection()
      if sysbench.opt.protocol == "prepare-once" then
         for index in ipairs(statements) do prepared[index] = prepare(index) end
      end
   end
   if sysbench.opt.gate ~= "" then
      gate, own = map_gate(sysbench.opt.gate, sysbench.opt.threads)
      clock = ffi.new("pp_timespec")
      my_turn = 0
      own.ready = 1
   end
end

local function fill(statement)
   return (statement:gsub("{{(%a+) ?(%-?%d*) ?(%-?%d*)}}", function(word, low, high)
      return next_number({word = word, low = tonumber(low), high = tonumber(high)})
   end))
end

local function ask_one(index)
   if sysbench.opt.protocol == "text" then
      con:query(has_place[index] and fill(statements[index]) or statements[index])
   elseif sysbench.opt.protocol == "prepare-once" and not sysbench.opt.reconnect then
      execute(prepared[index], index)
   else
      local made = prepare(index)
      execute(made, index)
      made.statement:close()
   end
end

local function ask()
   if sysbench.opt.reconnect then con = open_connection() end
   if sysbench.opt.transaction then
      for index = 1, #statements do ask_one(index) end
   else
      local index = turn + 1
      turn = index % #statements
      ask_one(index)
   end
   if sysbench.opt.reconnect then con:disconnect() end
end

-- A transaction that the server ended to resolve a deadlock is asked again, as sysbench does by itself without a gate.
local function again(reason)
   return sysbench.opt.transaction and type(reason) == "table" and reason.errcode == sysbench.error.RESTART_EVENT
end

function event()
   if gate == nil then
      ask()
   elseif await_turn() then
      local answered, reason
      repeat
         answered, reason = pcall(ask)
      until answered or not again(reason)
      if answered then
         count_answer()
      else
         -- sysbench ends when all of its threads have; powerprof then wakes those that sleep at the gate.
         own.failed = 1
         error(reason, 0)
      end
   end
end

function thread_done()
   if con ~= nil and not sysbench.opt.reconnect then con:disconnect() end
end
