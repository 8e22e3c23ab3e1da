-- SPDX-License-Identifier: Apache-2.0
-- The five transactions of TPC-C (specification 5.11, clause 2) in their mix, one an event, through sysbench.
-- Left out: the terminal's screens, remote warehouses where there is one warehouse, delivery's queue (it is run at once),
-- and terminals of one warehouse each: a client takes any, or a few clients would leave most of the tables alone. `think` scales keying and think times (clause 5.2.5): 1 as specified, 0 none.

sysbench.cmdline.options = {
   warehouses = {"how many warehouses the tables hold", 1},
   think = {"share of the keying and think times to wait", 0},
}

local ffi = require("ffi")
ffi.cdef("int usleep(unsigned int);")

local DISTRICTS, CUSTOMERS, ITEMS = 10, 3000, 100000
local SYLLABLES = {"BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"}
-- The constants of NURand (clause 2.1.6): any that the loader's constant (0) allows for, the same in every run.
local C_LAST, C_ID, C_ITEM = 87, 259, 7911

local uniform, format = sysbench.rand.uniform, string.format

local function nurand(a, c, low, high)
   return (bit.bor(uniform(0, a), uniform(low, high)) + c) % (high - low + 1) + low
end

local function last_name()
   local number = nurand(255, C_LAST, 0, 999)
   return SYLLABLES[math.floor(number / 100) + 1] .. SYLLABLES[math.floor(number / 10) % 10 + 1]
      .. SYLLABLES[number % 10 + 1]
end

local function ask(text, ...) return con:query(format(text, ...)) end
local function row(text, ...) return con:query_row(format(text, ...)) end

local function rows(text, ...)
   local result, found = con:query(format(text, ...)), {}
   for _ = 1, result.nrows do found[#found + 1] = result:fetch_row() end
   return found
end

-- A change whose places are whole numbers, prepared once a connection: what sysbench can bind without a length. Amounts are
-- cents, so that sums stay exact.
local function change(text, ...)
   local made = prepared[text]
   if made == nil then
      made = {statement = con:prepare(text), places = {}}
      local _, count = text:gsub("%?", "")
      for number = 1, count do made.places[number] = made.statement:bind_create(sysbench.sql.type.BIGINT) end
      made.statement:bind_param(unpack(made.places))
      prepared[text] = made
   end
   for number, place in ipairs(made.places) do place:set((select(number, ...))) end
   made.statement:execute()
end

-- By last name in 60 of 100 (clause 2.5.1.2): of those with that name the one in the middle by first name.
local function some_customer(w, d)
   if uniform(1, 100) > 60 then return nurand(1023, C_ID, 1, CUSTOMERS) end
   local found = rows(
      "SELECT c_id FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_last = '%s' ORDER BY c_first", w, d, last_name())
   if #found == 0 then return nurand(1023, C_ID, 1, CUSTOMERS) end
   return tonumber(found[math.ceil(#found / 2)][1])
end

local function another(w)
   if sysbench.opt.warehouses == 1 then return w end
   local other = uniform(1, sysbench.opt.warehouses - 1)
   return other >= w and other + 1 or other
end

-- The items of an order are all different, so that each row of stock is read and written once. The rows of items and
-- stock are read and the lines written by one statement each: what goes over the wire is what applications send.
local function draw_lines(w)
   local lines, drawn, is_local = {}, {}, true
   for number = 1, uniform(5, 15) do
      local item
      repeat item = nurand(8191, C_ITEM, 1, ITEMS) until not drawn[item]
      drawn[item] = true
      local from = uniform(1, 100) == 1 and another(w) or w
      is_local = is_local and from == w
      lines[number] = {item = item, from = from, quantity = uniform(1, 10)}
   end
   if uniform(1, 100) == 1 then lines[#lines].item = ITEMS + 1 end
   -- In one order for all, so that two of them wait for each other and do not deadlock.
   table.sort(lines, function(a, b) return a.from < b.from or a.from == b.from and a.item < b.item end)
   return lines, is_local
end

local function items_of(lines)
   local found = {}
   for number, line in ipairs(lines) do found[number] = line.item end
   return table.concat(found, ", ")
end

-- Locks the rows of stock, one warehouse after the other; by item the quantity there and the district's text.
local function lock_stock(lines, d)
   local by_warehouse, order = {}, {}
   for _, line in ipairs(lines) do
      if by_warehouse[line.from] == nil then
         by_warehouse[line.from] = {}
         order[#order + 1] = line.from
      end
      table.insert(by_warehouse[line.from], line)
   end
   local stock = {}
   for _, from in ipairs(order) do
      local found = rows(
         "SELECT s_i_id, s_quantity, s_dist_%02d, s_data FROM stock WHERE s_w_id = %d AND s_i_id IN (%s) FOR UPDATE",
         d, from, items_of(by_warehouse[from]))
      for _, one in ipairs(found) do stock[tonumber(one[1])] = {quantity = tonumber(one[2]), text = one[3]} end
   end
   return stock
end

local function new_order(w)
   local d, c = uniform(1, DISTRICTS), nurand(1023, C_ID, 1, CUSTOMERS)
   local lines, is_local = draw_lines(w)
   ask("BEGIN")
   local discount, _, _, w_tax = row(
      "SELECT c_discount, c_last, c_credit, w_tax FROM customer, warehouse WHERE w_id = %d AND c_w_id = %d AND c_d_id = %d AND c_id = %d",
      w, w, d, c)
   local order, d_tax = row("SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = %d AND d_id = %d FOR UPDATE", w, d)
   order = tonumber(order)
   change("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = ? AND d_id = ?", w, d)
   change("INSERT INTO orders (o_id, o_d_id, o_w_id, o_c_id, o_entry_d, o_ol_cnt, o_all_local) VALUES (?, ?, ?, ?, NOW(), ?, ?)",
      order, d, w, c, #lines, is_local and 1 or 0)
   change("INSERT INTO new_order (no_o_id, no_d_id, no_w_id) VALUES (?, ?, ?)", order, d, w)
   local items = rows("SELECT i_id, i_price, i_name, i_data FROM item WHERE i_id IN (%s)", items_of(lines))
   if #items < #lines then
      ask("ROLLBACK")
      return
   end
   local price = {}
   for _, item in ipairs(items) do price[tonumber(item[1])] = tonumber(item[2]) end
   local stock, values = lock_stock(lines, d), {}
   local factor = (1 + tonumber(w_tax) + tonumber(d_tax)) * (1 - tonumber(discount))
   for number, line in ipairs(lines) do
      local left = stock[line.item].quantity - line.quantity
      if left < 10 then left = left + 91 end
      change("UPDATE stock SET s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + ? WHERE s_i_id = ? AND s_w_id = ?",
         left, line.quantity, line.from == w and 0 or 1, line.item, line.from)
      values[number] = format("(%d, %d, %d, %d, %d, %d, %d, %.2f, '%s')", order, d, w, number, line.item, line.from,
         line.quantity, line.quantity * price[line.item] * factor, stock[line.item].text)
   end
   ask("INSERT INTO order_line (ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_dist_info) VALUES %s",
      table.concat(values, ", "))
   ask("COMMIT")
end

local function payment(w)
   local d, cents = uniform(1, DISTRICTS), uniform(100, 500000)
   local c_w, c_d = w, d
   if uniform(1, 100) > 85 then c_w, c_d = another(w), uniform(1, DISTRICTS) end
   ask("BEGIN")
   -- The district before the warehouse, whose row all clients of a warehouse wait for.
   change("UPDATE district SET d_ytd = d_ytd + ? / 100 WHERE d_w_id = ? AND d_id = ?", cents, w, d)
   local d_name = row(
      "SELECT d_name, d_street_1, d_street_2, d_city, d_state, d_zip FROM district WHERE d_w_id = %d AND d_id = %d", w, d)
   change("UPDATE warehouse SET w_ytd = w_ytd + ? / 100 WHERE w_id = ?", cents, w)
   local w_name = row("SELECT w_name, w_street_1, w_street_2, w_city, w_state, w_zip FROM warehouse WHERE w_id = %d", w)
   local c = some_customer(c_w, c_d)
   local credit = row(
      "SELECT c_credit, c_first, c_middle, c_last, c_street_1, c_city, c_phone, c_since, c_credit_lim, c_discount, c_balance FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d FOR UPDATE",
      c_w, c_d, c)
   if credit == "BC" then
      ask("UPDATE customer SET c_data = LEFT(CONCAT('%d %d %d %d %d %.2f|', c_data), 500) WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d",
         c, c_d, c_w, d, w, cents / 100, c_w, c_d, c)
   end
   change("UPDATE customer SET c_balance = c_balance - ? / 100, c_ytd_payment = c_ytd_payment + ? / 100, c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
      cents, cents, c_w, c_d, c)
   ask("INSERT INTO history (h_c_d_id, h_c_w_id, h_c_id, h_d_id, h_w_id, h_date, h_amount, h_data) VALUES (%d, %d, %d, %d, %d, NOW(), %.2f, '%s    %s')",
      c_d, c_w, c, d, w, cents / 100, w_name, d_name)
   ask("COMMIT")
end

local function order_status(w)
   local d = uniform(1, DISTRICTS)
   ask("BEGIN")
   local c = some_customer(w, d)
   row("SELECT c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", w, d, c)
   local order = row(
      "SELECT o_id, o_carrier_id, o_entry_d FROM orders WHERE o_w_id = %d AND o_d_id = %d AND o_c_id = %d ORDER BY o_id DESC LIMIT 1",
      w, d, c)
   if order ~= nil then
      rows("SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s",
         w, d, order)
   end
   ask("COMMIT")
end

-- The oldest order of each district at once; a district without one is left out.
local function delivery(w)
   local carrier, orders = uniform(1, 10), {}
   ask("BEGIN")
   for d = 1, DISTRICTS do
      local order = row(
         "SELECT no_o_id FROM new_order WHERE no_w_id = %d AND no_d_id = %d ORDER BY no_o_id LIMIT 1 FOR UPDATE", w, d)
      if order ~= nil then orders[#orders + 1] = {district = d, order = order} end
   end
   if #orders > 0 then
      local function these(prefix)
         local found = {}
         for number, one in ipairs(orders) do
            found[number] = format("%s_d_id = %d AND %s_o_id = %s", prefix, one.district, prefix, one.order)
         end
         return table.concat(found, " OR ")
      end
      ask("DELETE FROM new_order WHERE no_w_id = %d AND (%s)", w, these("no"))
      local mine = these("o"):gsub("o_o_id", "o_id")
      local customers = {}
      for _, one in ipairs(rows("SELECT o_d_id, o_c_id FROM orders WHERE o_w_id = %d AND (%s)", w, mine)) do
         customers[tonumber(one[1])] = tonumber(one[2])
      end
      ask("UPDATE orders SET o_carrier_id = %d WHERE o_w_id = %d AND (%s)", carrier, w, mine)
      ask("UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = %d AND (%s)", w, these("ol"))
      local totals = rows(
         "SELECT ol_d_id, SUM(ol_amount) FROM order_line WHERE ol_w_id = %d AND (%s) GROUP BY ol_d_id", w, these("ol"))
      for _, one in ipairs(totals) do
         change("UPDATE customer SET c_balance = c_balance + ? / 100, c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            math.floor(one[2] * 100 + 0.5), w, tonumber(one[1]), customers[tonumber(one[1])])
      end
   end
   ask("COMMIT")
end

local function stock_level(w)
   local d = uniform(1, DISTRICTS)
   ask("BEGIN")
   local next_order = tonumber(row("SELECT d_next_o_id FROM district WHERE d_w_id = %d AND d_id = %d", w, d))
   row("SELECT COUNT(DISTINCT s_i_id) FROM order_line, stock WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id < %d AND ol_o_id >= %d AND s_w_id = %d AND s_i_id = ol_i_id AND s_quantity < %d",
      w, d, next_order, next_order - 20, w, uniform(10, 20))
   ask("COMMIT")
end

-- Of a hundred transactions, and the seconds of keying and thinking of each (clauses 5.2.3 and 5.2.5).
local MIX = {
   {45, new_order, 18, 12}, {43, payment, 3, 12}, {4, order_status, 2, 10}, {4, delivery, 2, 5}, {4, stock_level, 2, 5},
}

local function wait(seconds)
   if sysbench.opt.think > 0 then ffi.C.usleep(math.floor(seconds * sysbench.opt.think * 1e6)) end
end

function thread_init()
   drv = sysbench.sql.driver()
   con = drv:connect()
   prepared = {}
end

function event()
   local drawn = uniform(1, 100)
   for _, kind in ipairs(MIX) do
      drawn = drawn - kind[1]
      if drawn <= 0 then
         wait(kind[3])
         kind[2](uniform(1, sysbench.opt.warehouses))
         wait(math.min(10, -math.log(1 - sysbench.rand.uniform_double())) * kind[4])
         return
      end
   end
end

function thread_done() con:disconnect() end
