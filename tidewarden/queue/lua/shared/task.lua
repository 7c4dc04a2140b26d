-- task: the two records of a task, as they are packed.
-- Static record, written at the put: flags, the priority (with the flag 128 it is 50 and absent), due, then only what differs from the default.
local function encode(t)
  local flags, rest = 0, ''
  if t.deadline ~= t.due then flags, rest = flags + 1, rest .. pack('>I6', t.deadline) end
  if t.lease_ms ~= 0 then flags, rest = flags + 2, rest .. pack('>I6', t.lease_ms) end
  if t.attempts_max ~= 0 then flags, rest = flags + 4, rest .. pack('>I2', t.attempts_max) end
  if t.backoff_ms ~= 0 then flags, rest = flags + 8, rest .. pack('>I6', t.backoff_ms) end
  if t.own then flags = flags + 16 end
  if (t.expires or 0) > 0 then flags, rest = flags + 32, rest .. pack('>I6', t.expires) end
  if t.lane then
    if not t.order then -- equals of a lane leave in the order of their puts
      t.order = (S.line or 0) + 1
      set('line', t.order)
    end
    flags, rest = flags + 64, rest .. string.char(#t.lane) .. t.lane .. pack('>I6', t.order)
  end
  if t.priority == 50 then return pack('>BI6', flags + 128, t.due) .. rest .. t.payload end
  return pack('>BBI6', flags, t.priority, t.due) .. rest .. t.payload
end

-- What such a record says: priority, due, deadline, lease_ms, attempts_max, backoff_ms, own, expires, payload, lane, order.
local function said(raw)
  local priority, flags, due, at = 50, unpack_struct('>BI6', raw)
  if flags < 128 then priority, due, at = unpack_struct('>BI6', raw, 2) end
  local deadline, lease_ms, attempts_max, backoff_ms, expires, lane, order = due, 0, 0, 0, 0, nil, nil
  local rest = flags % 16
  if rest ~= 0 then
    if rest % 2 >= 1 then deadline, at = unpack_struct('>I6', raw, at) end
    if rest % 4 >= 2 then lease_ms, at = unpack_struct('>I6', raw, at) end
    if rest % 8 >= 4 then attempts_max, at = unpack_struct('>I2', raw, at) end
    if rest >= 8 then backoff_ms, at = unpack_struct('>I6', raw, at) end
  end
  if flags % 64 >= 32 then expires, at = unpack_struct('>I6', raw, at) end
  if flags % 128 >= 64 then
    local behind = at + 1 + string.byte(raw, at)
    lane = string.sub(raw, at + 1, behind - 1)
    order, at = unpack_struct('>I6', raw, behind)
  end
  return priority, due, deadline, lease_ms, attempts_max, backoff_ms, flags % 32 >= 16, expires, string.sub(raw, at), lane, order
end

local function decode(raw)
  local priority, due, deadline, lease_ms, attempts_max, backoff_ms, own, expires, payload, lane, order = said(raw)
  return {priority = priority, due = due, deadline = deadline, lease_ms = lease_ms, attempts_max = attempts_max, backoff_ms = backoff_ms,
          own = own, expires = expires, payload = payload, lane = lane, order = order}
end

-- Mutable record, there only once a task was taken, failed or buried. sticky: an open intent, the lease ends by its time alone.
-- history: how its leases ended badly, the last few; a task that never failed has none, and no bytes for it.
local function tries_encode(r)
  local flags, history = (r.sticky and 1 or 0) + (r.own and 2 or 0), r.history
  if history then flags, history = flags + 4, pack('>I2', #history) .. history end
  return pack('>dI2I2BI6B', r.lease, r.attempts, r.losses, flags, r.lease_ms, #r.holder) .. r.holder .. (history or '') .. r.reason
end

local function tries_decode(raw)
  local lease, attempts, losses, flags, lease_ms, length, at = unpack_struct('>dI2I2BI6B', raw)
  local from, history = at + length, nil
  if flags % 8 >= 4 then
    local size, start = unpack_struct('>I2', raw, from)
    history, from = string.sub(raw, start, start + size - 1), start + size
  end
  return {lease = lease, attempts = attempts, losses = losses, sticky = flags % 2 == 1, own = flags % 4 >= 2, lease_ms = lease_ms,
          holder = string.sub(raw, at, at + length - 1), history = history, reason = string.sub(raw, from)}
end

-- Of such a record its lease, its holder, and whether the id is one of ours.
local function tries_head(raw)
  local lease, _, _, flags, _, length, at = unpack_struct('>dI2I2BI6B', raw)
  return lease, string.sub(raw, at, at + length - 1), flags % 4 >= 2
end

local function fresh_tries() return {lease = 0, attempts = 0, losses = 0, sticky = false, own = false, lease_ms = 0, holder = '', reason = ''} end

-- row: of its account, where the caller has it.
local function task_get(id, row)
  local raw = record_get(id, row)
  return raw and decode(raw) or nil
end
local function task_put(id, t, row)
  local raw = encode(t)
  if S.accounts == 1 then
    row = row or redis.call('HGET', key('accounts'), id)
    if row and derived(row) == raw then return records_drop({id}) end
  end
  records_put({id, raw})
end
local function tries_get(id)
  local raw = redis.call('HGET', key('tries'), id)
  return raw and tries_decode(raw) or nil
end
local function tries_put(id, r) redis.call('HSET', key('tries'), id, tries_encode(r)) end
local function tries_drop(id) redis.call('HDEL', key('tries'), id) end

