-- SPDX-License-Identifier: Apache-2.0
-- Statements of known CPU time, by one client: each event executes every statement alone, --times of it, and then all of
-- them as a mix. Around each the CPU clock of the server's process is read and summed. Turns of some milliseconds, as
-- neighbours change a CPU's speed from one second to the next. An alias of the table tells the runs' texts apart.
sysbench.cmdline.options = {
  times = { "How often each statement, by commas", "60,12,8,1" },
  pid = { "The server's process", 0 },
  rows = { "Rows of the table", 10000 },
}

local ffi = require("ffi")
ffi.cdef [[
  struct timespec { long tv_sec; long tv_nsec; };
  int clock_gettime(int clock, struct timespec *now);
  int usleep(unsigned microseconds);
]]

local TEXTS = {
  "SELECT c FROM t %s WHERE id = %d",
  "SELECT SUM(k) FROM t %s WHERE id BETWEEN %d AND %d + 400",
  "SELECT c FROM t %s WHERE id BETWEEN %d AND %d + 100 ORDER BY c",
  "SELECT COUNT(*) FROM t %s WHERE c LIKE '%d%%'",
}

local function server_ns()
  -- A thread is counted up to where it was switched out: the server's goes to wait first.
  ffi.C.usleep(300)
  -- clock_getcpuclockid(3)
  assert(ffi.C.clock_gettime(bit.bor(bit.lshift(bit.bnot(tonumber(sysbench.opt.pid)), 3), 2), now) == 0)
  return tonumber(now.tv_sec) * 1e9 + tonumber(now.tv_nsec)
end

local function execute(number, mark)
  for _ = 1, times[number] do
    local id = sysbench.rand.uniform(1, sysbench.opt.rows - 500)
    con:query(string.format(TEXTS[number], mark, id, id))
  end
end

local function timed(turn, work)
  local before = server_ns()
  work()
  spent[turn] = spent[turn] + server_ns() - before
end

function thread_init()
  con = sysbench.sql.driver():connect()
  now, times, spent, events = ffi.new("struct timespec"), {}, {}, 0
  for one in string.gmatch(sysbench.opt.times, "%d+") do
    table.insert(times, tonumber(one))
    table.insert(spent, 0)
  end
  table.insert(spent, 0)
end

function event()
  for number = 1, #times do
    timed(number, function() execute(number, "alone") end)
  end
  timed(#spent, function()
    for number = 1, #times do
      execute(number, "mix")
    end
  end)
  events = events + 1
end

function thread_done()
  print("TURNS " .. events .. " " .. table.concat(spent, " "))
  con:disconnect()
end
