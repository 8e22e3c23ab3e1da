-- Runs the statements of a workload through sysbench: one statement an event, each client its own turn.
-- The files are NUL-separated, because statements have line breaks. In a statement {{uniform A B}} becomes a whole
-- number from A to B, and {{sequence}} a number that no other event of any run has had.

sysbench.cmdline.options = {
   statements = {"file of NUL-separated statements", ""},
   session = {"file of NUL-separated statements that every connection runs first", ""},
   protocol = {"text, prepare-once or prepare-each", "text"},
   reconnect = {"open a connection for every event", false},
   unique = {"number that the sequences of this run begin with", 0},
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

function thread_init()
   drv = sysbench.sql.driver()
   statements = read_statements(sysbench.opt.statements)
   session = read_statements(sysbench.opt.session)
   has_place = {}
   for index, statement in ipairs(statements) do has_place[index] = statement:find("{{", 1, true) ~= nil end
   turn = sysbench.tid % #statements
   counter = 0
   prepared = {}
   if not sysbench.opt.reconnect then
      con = open_connection()
      if sysbench.opt.protocol == "prepare-once" then
         for index, statement in ipairs(statements) do prepared[index] = con:prepare(statement) end
      end
   end
end

local function fill(statement)
   local text = statement:gsub("{{uniform (%-?%d+) (%-?%d+)}}", function(low, high)
      return tostring(sysbench.rand.uniform(tonumber(low), tonumber(high)))
   end)
   if text:find("{{sequence}}", 1, true) then
      counter = counter + 1
      local number = string.format("%d%04d%08d", sysbench.opt.unique, sysbench.tid, counter)
      text = text:gsub("{{sequence}}", number)
   end
   return text
end

function event()
   local index = turn + 1
   turn = index % #statements
   local text = statements[index]
   if has_place[index] then text = fill(text) end
   if sysbench.opt.reconnect then con = open_connection() end
   if sysbench.opt.protocol == "text" then
      con:query(text)
   elseif sysbench.opt.protocol == "prepare-once" and not sysbench.opt.reconnect then
      prepared[index]:execute()
   else
      local statement = con:prepare(text)
      statement:execute()
      statement:close()
   end
   if sysbench.opt.reconnect then con:disconnect() end
end

function thread_done()
   if con ~= nil and not sysbench.opt.reconnect then con:disconnect() end
end
