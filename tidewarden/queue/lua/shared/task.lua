-- task: the two records of a task, as they are packed.
-- Static record, written at the put: flags, the priority (with the flag 128 it is 50 and absent),
-- due, then only what differs from the default. The last part of it begins with the bytes of the
-- lane's name; \255 instead of them says that the trace context of the put, 25 bytes, comes
-- before.
local function encode(t)
  local flags, rest = 0, ''
  if t.deadline ~= t.due then
    flags, rest = flags + 1, rest .. pack('>I6', t.deadline)
  end
  if t.lease_ms ~= 0 then
    flags, rest = flags + 2, rest .. pack('>I6', t.lease_ms)
  end
  if t.attempts_max ~= 0 then
    flags, rest = flags + 4, rest .. pack('>I2', t.attempts_max)
  end
  if t.backoff_ms ~= 0 then
    flags, rest = flags + 8, rest .. pack('>I6', t.backoff_ms)
  end
  if t.own then flags = flags + 16 end
  if (t.expires or 0) > 0 then
    flags, rest = flags + 32, rest .. pack('>I6', t.expires)
  end
  if t.trace then
    flags, rest = flags + 64, rest .. '\255' .. t.trace
    if not t.lane then rest = rest .. '\0' end
  end
  if t.lane then
    if not t.order then -- equals of a lane leave in the order of their puts
      t.order = (S.line or 0) + 1
      set('line', t.order)
    end
    rest = rest .. string.char(#t.lane) .. t.lane .. pack('>I6', t.order)
    if not t.trace then flags = flags + 64 end
  end
  if t.priority == 50 then return pack('>BI6', flags + 128, t.due) .. rest .. t.payload end
  return pack('>BBI6', flags, t.priority, t.due) .. rest .. t.payload
end

-- What such a record says: priority, due, deadline, lease_ms, attempts_max, backoff_ms, own,
-- expires, payload, lane, order, trace. An error where this version cannot read it: it was cut
-- short, is foreign, or a newer version's.
local function said(raw)
  local priority, flags, due, at = 50, unpack_struct('>BI6', raw)
  if flags < 128 then
    priority, due, at = unpack_struct('>BI6', raw, 2)
  end
  local deadline, lease_ms, attempts_max, backoff_ms, expires, lane, order, trace =
    due, 0, 0, 0, 0, nil, nil, nil
  local rest = flags % 16
  if rest ~= 0 then
    if rest % 2 >= 1 then
      deadline, at = unpack_struct('>I6', raw, at)
    end
    if rest % 4 >= 2 then
      lease_ms, at = unpack_struct('>I6', raw, at)
    end
    if rest % 8 >= 4 then
      attempts_max, at = unpack_struct('>I2', raw, at)
    end
    if rest >= 8 then
      backoff_ms, at = unpack_struct('>I6', raw, at)
    end
  end
  if flags % 64 >= 32 then
    expires, at = unpack_struct('>I6', raw, at)
  end
  if flags % 128 >= 64 then
    local length = string.byte(raw, at)
    if length == 255 then
      trace, at = string.sub(raw, at + 1, at + 25), at + 26
      length = string.byte(raw, at)
    end
    if length > 0 or not trace then
      local behind = at + 1 + length
      lane = string.sub(raw, at + 1, behind - 1)
      order, at = unpack_struct('>I6', raw, behind)
    else
      at = at + 1
    end
  end
  if
    priority > 99
    or due >= LATEST
    or deadline >= LATEST
    or expires >= LATEST
    or lease_ms >= NEVER
    or backoff_ms >= NEVER
    or lane == ''
  then
    error('it is no task')
  end
  return priority,
    due,
    deadline,
    lease_ms,
    attempts_max,
    backoff_ms,
    flags % 32 >= 16,
    expires,
    string.sub(raw, at),
    lane,
    order,
    trace
end

-- The task; nil where its record cannot be read.
local function decode(raw)
  local readable, priority, due, deadline, lease_ms, attempts_max, backoff_ms, own,
    expires, payload, lane, order, trace =
    pcall(said, raw)
  if not readable then return nil end
  return {
    priority = priority,
    due = due,
    deadline = deadline,
    lease_ms = lease_ms,
    attempts_max = attempts_max,
    backoff_ms = backoff_ms,
    own = own,
    expires = expires,
    payload = payload,
    lane = lane,
    order = order,
    trace = trace,
  }
end

-- Mutable record, there only once a task was taken, failed or buried. sticky: an open intent, the
-- lease ends by its time alone. history: how its leases ended badly, the last few; a task that
-- never failed has none, and no bytes for it.
local function tries_encode(r)
  local flags, history = (r.sticky and 1 or 0) + (r.own and 2 or 0), r.history
  if history then
    flags, history = flags + 4, pack('>I2', #history) .. history
  end
  return pack('>dI2I2BI6B', r.lease, r.attempts, r.losses, flags, r.lease_ms, #r.holder)
    .. r.holder
    .. (history or '')
    .. r.reason
end

-- Nil where it cannot be read.
local TRIES_HEAD = 20 -- bytes before the holder
local function tries_decode(raw)
  if #raw < TRIES_HEAD then return nil end
  local lease, attempts, losses, flags, lease_ms, length, at = unpack_struct('>dI2I2BI6B', raw)
  local from, history = at + length, nil
  -- Of NaN and infinity: NaN.
  if flags > 7 or lease % 1 ~= 0 or lease < 0 or lease_ms >= LATEST or from > #raw + 1 then
    return nil
  end
  if flags >= 4 then
    if from >= #raw then return nil end
    local size, start = unpack_struct('>I2', raw, from)
    history, from = string.sub(raw, start, start + size - 1), start + size
    if from > #raw + 1 then return nil end
  end
  local holder = string.sub(raw, at, at + length - 1)
  if
    length > 0
    and not (string.byte(holder) == 126 and length == 33)
    and not string.find(holder, '.%.%d+$')
  then
    return nil
  end
  return {
    lease = lease,
    attempts = attempts,
    losses = losses,
    sticky = flags % 2 == 1,
    own = flags % 4 >= 2,
    lease_ms = lease_ms,
    holder = holder,
    history = history,
    reason = string.sub(raw, from),
  }
end

-- Of such a record its lease, its holder, and whether the id is one of ours; nothing where it is
-- too short.
local function tries_head(raw)
  if #raw < TRIES_HEAD then return end
  local lease, _, _, flags, _, length, at = unpack_struct('>dI2I2BI6B', raw)
  return lease, string.sub(raw, at, at + length - 1), flags % 4 >= 2
end

local function fresh_tries()
  return {
    lease = 0,
    attempts = 0,
    losses = 0,
    sticky = false,
    own = false,
    lease_ms = 0,
    holder = '',
    reason = '',
  }
end

-- row: of its account, where the caller has it. Of a record that cannot be read nil, and true; so
-- tries_get does.
local function task_get(id, row)
  local raw = record_get(id, row)
  local t = raw and decode(raw) or nil
  return t, raw and not t
end
local function task_put(id, t, row)
  local raw = encode(t)
  if S.accounts == 1 then
    row = row or redis.call('HGET', key('accounts'), id)
    if row and derived(row) == raw then return records_drop({ id }) end
  end
  records_put({ id, raw })
end
local function tries_get(id)
  local raw = redis.call('HGET', key('tries'), id)
  local r = raw and tries_decode(raw) or nil
  return r, raw and not r
end

-- Both records of a task, and whether it is there and one of them cannot be read: then the first is
-- nil. must: that is refused.
local function both_get(id, must)
  local t, foreign = task_get(id)
  local r, unread = tries_get(id)
  if foreign or unread then
    local unreadable = t ~= nil or foreign
    if unreadable and must then
      refuse(
        'INTERNAL a record of the task '
          .. id
          .. ' cannot be read: Q.CHECK sets it aside, Q.DELETE removes it'
      )
    end
    return nil, r, unreadable
  end
  return t, r, false
end
local function tries_put(id, r) redis.call('HSET', key('tries'), id, tries_encode(r)) end
local function tries_drop(id) redis.call('HDEL', key('tries'), id) end
