-- shard: what a shard of a queue is. Local functions only; the loader puts this file, and the names KEYS and ARGV, before every verb's.
-- KEYS    1 the shard's prefix `{cluster:queue:shard}`  2 the store's view counter, on an embedded store only
-- ARGV    1 now_ms (unix; "0": the store's TIME), and `/layout` in a queue that was cut anew  2 the caller's holder `node.boot` ("-": none)  3… the verb's own
-- REPLY   finish(items) = {now_ms, next_ms | -1, woke 0|1, items}; refusals are errors `CODE message`
-- This file alone knows the layout (format 1). A task is in exactly one of delayed, ready:<priority>, leased:<holder>, buried.
-- The holder `~<uuid>` is a session's: the leases of all of them stand in `leased:~`, and `held` (zset, scores 0) has `<uuid><id>` for each.
-- Beside them: expiring (zset, waiting tasks with a TTL), waits (hash id → holders), done:<id> and gone:<id> (how a task ended, for a while).
local P, CALLER
local now, now_us
local view -- the store's, read at the first lease
local S -- the shard record, numbers as numbers
local changed -- fields of the record to write back
local counts -- counters to raise
local joined -- this verb is a part of a batch: another finishes for it
local alarm_lowered, woke, counted
local freed -- a task is gone: a queue with a capacity has room again
local ended -- ids of tasks whose end somebody waits for
local growing -- put-like scripts set it: on a full store they are refused, all others must get through
local pack, unpack_struct
local NEVER = 4398046511104 -- 2^42: later than any time on the wire
local MODES = {keep = true, fail = true, replace = true}

-- Before every verb. As a library this file is read once, so whatever a verb changes begins here and not where it is named.
local function begin(keys, arguments)
  KEYS, ARGV = keys, arguments
  P, CALLER = KEYS[1], ARGV[2]
  now, now_us, view, S = nil, nil, nil, nil
  changed, counts, ended = {}, {}, {}
  joined, alarm_lowered, woke, counted, freed, growing = false, false, false, false, false, false
  pack, unpack_struct = struct.pack, struct.unpack
end

-- Exact for every integer below 2^53 (`tostring` and `..` round). redis.call writes the numbers it is given exactly, too.
local function text(n) return string.format('%d', n) end
local function refuse(message) error({err = message}, 0) end

-- Runs a verb. A refusal becomes an error reply of its message alone: Redis 6.2 cannot raise a table, later ones add the script's line.
local function run(verb)
  local ok, reply = pcall(verb)
  if ok then return reply end
  if type(reply) == 'table' then reply = reply.err end -- Redis 7's own pcall has taken the message out already
  local message = string.match(reply, '^%u+ .*$') or string.match(reply, '^@user_script: ?%d+: %-?(%u+ .*)$') -- 6.2's redis.call
  if message then return {err = message} end
  error(reply, 0)
end

local function key(name) return P .. ':' .. name end

local function int(i, name, low, high)
  local raw = ARGV[i]
  local n = raw and string.match(raw, '^-?%d+$') and tonumber(raw)
  if not n then refuse('BADARG ' .. name .. ' is not an integer: ' .. tostring(raw)) end
  if low and (n < low or n > high) then
    refuse('BADARG ' .. name .. ' is ' .. raw .. '; allowed is ' .. text(low) .. ' to ' .. text(high))
  end
  return n
end

-- The counters of every put, take and ack stand in the record, which is written anyway; all others in a hash of their own.
local IN_RECORD = {put = 'puts', taken = 'takes', acked = 'acks'}
local function count(name, n)
  local field = IN_RECORD[name]
  if field then
    S[field] = (S[field] or 0) + (n or 1)
    changed[field] = true
  else
    counts[name] = (counts[name] or 0) + (n or 1)
    counted = true
  end
end

local function set(field, value)
  S[field] = value
  changed[field] = true
end

-- A queue that is cut anew counts its layouts, and callers say with the time which one they know: `now_ms/layout`. A newer one is adopted.
local function agree(layout)
  local stored = S.layout
  if layout < stored then
    S = nil -- no other part of a batch may run either
    refuse('RECUT ' .. text(stored) .. ' the queue of ' .. P .. ' was cut anew since the caller read its settings')
  end
  set('layout', layout)
end

local function open()
  if S then return end -- a part of a batch
  local time = redis.call('TIME')
  local layout = 0
  now = tonumber(ARGV[1])
  if not now then
    local at, known = string.match(ARGV[1], '^(%d+)/(%d+)$')
    now, layout = tonumber(at), tonumber(known)
  end
  if now == 0 then
    now_us = time[1] * 1000000 + time[2]
    now = math.floor(now_us / 1000)
  else
    now_us = now * 1000
  end
  -- One HGETALL is half the price of an HMGET of every field: most are absent and mean their default.
  local raw = redis.call('HGETALL', key('shard'))
  S = {}
  for i = 1, #raw, 2 do S[raw[i]] = tonumber(raw[i + 1]) or raw[i + 1] end
  S.format, S.epoch, S.view, S.n, S.seq, S.taken = S.format or 0, S.epoch or 0, S.view or 0, S.n or 0, S.seq or 0, S.taken or 0
  S.pris = S.pris and tostring(S.pris) or '' -- a list of one priority looks like a number
  S.sweeper, S.holders, S.waiting, S.dead = S.sweeper or '', S.holders or '', S.waiting or '', S.dead or ''
  S.paused, S.alarm, S.tick, S.awaited = S.paused or 0, S.alarm or NEVER, S.tick or NEVER, S.awaited or 0
  S.ttls, S.capacity, S.roomless = S.ttls or 0, S.capacity or 0, S.roomless or ''
  S.urgent_ms, S.lease_ms, S.late_share, S.early_share = S.urgent_ms or 60000, S.lease_ms or 30000, S.late_share or 8, S.early_share or 16
  S.order, S.dedup_ms, S.losses_max, S.backoff_cap_ms = S.order or 'bands', S.dedup_ms or 60000, S.losses_max or 10, S.backoff_cap_ms or 3600000
  if S.format > 1 then
    refuse('INTERNAL the shard ' .. P .. ' has format ' .. text(S.format) .. '; this version reads 1: upgrade this node')
  end
  S.layout = S.layout or 0
  if S.layout ~= layout then agree(layout) end
end

-- Lists in the record: names separated by spaces, each at most once.
local function has(list, name) return string.find(' ' .. list .. ' ', ' ' .. name .. ' ', 1, true) ~= nil end
local function with(list, name)
  if list == '' then return name end
  return list .. ' ' .. name
end
local function without(list, name)
  local rest = {}
  for word in string.gmatch(list, '%S+') do
    if word ~= name then rest[#rest + 1] = word end
  end
  return table.concat(rest, ' ')
end

-- The highest boot of a node that was declared dead, 0 when none was.
local function dead_boot(node)
  for word in string.gmatch(S.dead, '%S+') do
    local name, boot = string.match(word, '^(.*)%.(%d+)$')
    if name == node then return tonumber(boot) end
  end
  return 0
end

local function alive(holder)
  local node, boot = string.match(holder, '^(.*)%.(%d+)$')
  if not node then refuse('BADARG the holder ' .. holder .. ' is not node.boot') end
  if tonumber(boot) <= dead_boot(node) then
    refuse('STALE ' .. holder .. ' was declared dead; the node has to register again')
  end
end

-- Leader-only scripts: a greater epoch is adopted, the same leader runs, any other is refused.
local function fence(epoch, holder)
  if epoch > S.epoch then
    set('epoch', epoch)
    set('sweeper', holder)
  elseif epoch < S.epoch or holder ~= S.sweeper then
    refuse('STALE the fence of ' .. P .. ' is at epoch ' .. text(S.epoch) .. ' held by ' .. S.sweeper)
  end
end

-- Something will happen at `ms`: whoever sleeps longer than that is told by finish().
local function note(ms)
  if ms < S.alarm then
    set('alarm', ms)
    alarm_lowered = true
  end
end

-- A schedule's tick concerns the leader alone: it has an alarm of its own.
local function note_tick(ms)
  if ms ~= S.tick then
    if ms < S.tick then alarm_lowered = true end
    set('tick', ms)
  end
end

-- Static record, written at the put: flags, priority, due, then only what differs from the default.
local function encode(t)
  local flags, rest = 0, ''
  if t.deadline ~= t.due then flags, rest = flags + 1, rest .. pack('>I6', t.deadline) end
  if t.lease_ms ~= 0 then flags, rest = flags + 2, rest .. pack('>I6', t.lease_ms) end
  if t.attempts_max ~= 0 then flags, rest = flags + 4, rest .. pack('>I2', t.attempts_max) end
  if t.backoff_ms ~= 0 then flags, rest = flags + 8, rest .. pack('>I6', t.backoff_ms) end
  if t.own then flags = flags + 16 end
  if (t.expires or 0) > 0 then flags, rest = flags + 32, rest .. pack('>I6', t.expires) end
  return pack('>BBI6', flags, t.priority, t.due) .. rest .. t.payload
end

local function decode(raw)
  local flags, priority, due, at = unpack_struct('>BBI6', raw)
  local t = {priority = priority, due = due, deadline = due, lease_ms = 0, attempts_max = 0, backoff_ms = 0, own = flags % 32 >= 16,
             expires = 0}
  local rest = flags % 16
  if rest ~= 0 then
    if rest % 2 >= 1 then t.deadline, at = unpack_struct('>I6', raw, at) end
    if rest % 4 >= 2 then t.lease_ms, at = unpack_struct('>I6', raw, at) end
    if rest % 8 >= 4 then t.attempts_max, at = unpack_struct('>I2', raw, at) end
    if rest >= 8 then t.backoff_ms, at = unpack_struct('>I6', raw, at) end
  end
  if flags % 64 >= 32 then t.expires, at = unpack_struct('>I6', raw, at) end
  t.payload = string.sub(raw, at)
  return t
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

local function fresh_tries() return {lease = 0, attempts = 0, losses = 0, sticky = false, own = false, lease_ms = 0, holder = '', reason = ''} end

local function task_get(id)
  local raw = redis.call('HGET', key('tasks'), id)
  return raw and decode(raw) or nil
end
local function task_put(id, t) redis.call('HSET', key('tasks'), id, encode(t)) end
local function tries_get(id)
  local raw = redis.call('HGET', key('tries'), id)
  return raw and tries_decode(raw) or nil
end
local function tries_put(id, r) redis.call('HSET', key('tries'), id, tries_encode(r)) end
local function tries_drop(id) redis.call('HDEL', key('tries'), id) end

-- Where a task lies; leased and buried show in its tries record, delayed and ready by its due time's index.
local function locate(id, t, r)
  if r and r.holder ~= '' then return 'leased' end
  if redis.call('ZSCORE', key('delayed'), id) then return 'delayed' end
  if redis.call('ZSCORE', key('ready:' .. t.priority), id) then return 'ready' end
  if redis.call('ZSCORE', key('buried'), id) then return 'buried' end
  return 'lost'
end

-- The name of the index that a holder's leases stand in, after `leased:`.
local function index_of(holder)
  return string.byte(holder) == 126 and '~' or holder
end

-- A lease leaves its indexes; its record is the caller's.
local function unlease(id, r)
  local index = index_of(r.holder)
  redis.call('ZREM', key('leased:' .. index), id)
  if index ~= r.holder then redis.call('ZREM', key('held'), string.sub(r.holder, 2) .. id) end
end

local function index_remove(id, t, r, where)
  if where == 'leased' then unlease(id, r)
  elseif where == 'ready' then redis.call('ZREM', key('ready:' .. t.priority), id)
  elseif where ~= 'lost' then redis.call('ZREM', key(where), id) end
  if t.expires > 0 then redis.call('ZREM', key('expiring'), id) end
end

-- A task with a TTL stands in `expiring` too, as long as it is ready or delayed; the record says when there may be any.
local function may_expire(id, t)
  if (t.expires or 0) == 0 then return end
  redis.call('ZADD', key('expiring'), t.expires, id)
  if S.ttls == 0 then set('ttls', 1) end
  note(t.expires)
end

-- The names of the indexes in which the tasks of a state lie.
local function indexes_of(state)
  if state == 'delayed' or state == 'buried' then return {state} end
  local names, list, prefix = {}, S.pris, 'ready:'
  if state == 'leased' then list, prefix = S.holders, 'leased:'
  elseif state ~= 'ready' then refuse('BADARG the state is ' .. state .. '; allowed are delayed, ready, leased, buried') end
  for word in string.gmatch(list, '%S+') do names[#names + 1] = prefix .. word end
  return names
end

local function use_priority(priority)
  local name = tostring(priority)
  if not has(S.pris, name) then
    local all = {priority}
    for word in string.gmatch(S.pris, '%S+') do all[#all + 1] = tonumber(word) end
    table.sort(all)
    set('pris', table.concat(all, ' '))
  end
end

local function make_ready(id, t)
  redis.call('ZADD', key('ready:' .. t.priority), t.deadline, id)
  use_priority(t.priority)
  woke = true
  may_expire(id, t)
end

local function make_delayed(id, t, at)
  redis.call('ZADD', key('delayed'), at, id)
  note(at)
  may_expire(id, t)
end

local function index_add(id, t)
  if t.due > now then
    make_delayed(id, t, t.due)
  else
    make_ready(id, t)
  end
end

-- Put or replace a task wherever it lies; a lease on it is void from now on.
local function place(id, t)
  local old = task_get(id)
  if old then
    local r = tries_get(id)
    index_remove(id, old, r, locate(id, old, r))
    if r then tries_drop(id) end
  end
  task_put(id, t)
  index_add(id, t)
end

local function held(id, lease)
  local r = tries_get(id)
  if r and r.holder ~= '' and r.lease == lease then return r end
  return nil
end

-- A task is done, deleted or buried: the nodes in `waits` (hash id → holders) are told. The record counts its ids, so that nobody looks for none.
local function over(id)
  if S.awaited > 0 then ended[#ended + 1] = id end
end

-- How long the end of a task is remembered: with `known` for dedup_ms, else only where somebody waits to hear of it. 0: not.
local function memory_ms(id, known)
  if known and S.dedup_ms > 0 then return S.dedup_ms end
  return S.awaited > 0 and redis.call('HEXISTS', key('waits'), id) == 1 and 10000 or 0
end

-- A task is removed undone: what Q.WAIT answers for a while; a put of the id is not held up by it.
local function removed(id, known)
  local ms = memory_ms(id, known)
  if ms > 0 then redis.call('SET', key('gone:' .. id), '1', 'PX', text(ms)) end
  over(id)
end

-- This node is told when the task ends.
local function await_end(id)
  local holders = redis.call('HGET', key('waits'), id) or ''
  if has(holders, CALLER) then return end
  redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
  redis.call('HSET', key('waits'), id, with(holders, CALLER))
  if holders == '' then set('awaited', S.awaited + 1) end
end

local function tell_ends(channel, place)
  for from = 1, #ended, 1000 do
    local ids = {unpack(ended, from, math.min(from + 999, #ended))}
    local waits = redis.call('HMGET', key('waits'), unpack(ids))
    redis.call('HDEL', key('waits'), unpack(ids))
    for i = 1, #ids do
      for holder in string.gmatch(waits[i] or '', '%S+') do redis.call('PUBLISH', channel .. holder, place .. ' end:' .. ids[i]) end
    end
  end
  set('awaited', redis.call('HLEN', key('waits')))
end

-- One more bad end for the record, the oldest is dropped. An entry: when, how (fail, expired, loss, bury, ttl), attempt, reason.
local function history_of(r)
  local hows, entries, at = {'fail', 'expired', 'loss', 'bury', 'ttl'}, {}, 1
  while r.history and at <= #r.history do
    local ms, how, attempt, size = unpack_struct('>I6BI2B', r.history, at)
    entries[#entries + 1] = {ms, hows[how] or '', attempt, string.sub(r.history, at + 10, at + 9 + size), at}
    at = at + 10 + size
  end
  return entries
end
local function remember(r, how, attempt, reason)
  local most, codes = S.history or 5, {fail = 1, expired = 2, loss = 3, bury = 4, ttl = 5}
  if most == 0 then return end
  local entries = r.history and history_of(r) or {}
  local first = entries[#entries - most + 2]
  r.history = (first and string.sub(r.history, first[5]) or most > 1 and r.history or '') .. pack('>I6BI2B', now, codes[how], attempt, #reason) .. reason
end

local function bury(id, r, reason)
  r.holder, r.sticky, r.reason = '', false, reason
  tries_put(id, r)
  redis.call('ZADD', key('buried'), now, id)
  count('buried')
  over(id)
end

-- Doubling from BACKOFF to the queue's cap, plus up to a quarter so that a crowd spreads.
local function backoff(t, r)
  if t.backoff_ms == 0 then return 0 end
  local wait = math.min(t.backoff_ms * 2 ^ math.min(r.attempts - 1, 30), S.backoff_cap_ms)
  local dice = (r.lease % 1000003 * 7919 + now) % 1000 / 1000 -- small factors: doubles are exact to 2^53 only
  return math.floor(wait * (1 + dice / 4))
end

-- A lock is a task that is there while somebody holds it (see lock_acquire.lua): whatever ends the lease, nothing stays, and who waits is told.
local function unlock(id)
  redis.call('HDEL', key('tasks'), id)
  tries_drop(id)
  over(id)
end

-- The lock under its fence number: its body and tries record; nil when it is not held under that one.
local function locked(name, fence)
  local t, r = task_get(name), tries_get(name)
  if t and r and r.holder ~= '' and unpack_struct('>d', t.payload) == fence then return t, r end
  return nil
end

-- A lease is over. how: release (attempt given back) | fail, expired (attempt kept, backoff) | loss (given back, counted as a loss).
-- delay_ms: nil for the backoff. The caller has checked that `r` is the record of a leased task.
local function end_lease(id, t, r, how, delay_ms, reason)
  unlease(id, r)
  count(how)
  if S.locks then return unlock(id) end
  reason = reason and string.sub(reason, 1, 240)
  if how ~= 'release' then remember(r, how, r.attempts, reason or '') end
  if how == 'release' or how == 'loss' then r.attempts = r.attempts - 1 end
  if how == 'loss' then r.losses = math.min(r.losses + 1, 65535) end
  if how ~= 'release' and reason == nil then reason = how end
  if reason then r.reason = reason end
  local spent = t.attempts_max > 0 and r.attempts >= t.attempts_max and (how == 'fail' or how == 'expired')
  if spent then return bury(id, r, r.reason) end
  if how == 'loss' and S.losses_max > 0 and r.losses >= S.losses_max then return bury(id, r, 'losses') end
  if delay_ms == nil then delay_ms = (how == 'fail' or how == 'expired') and backoff(t, r) or 0 end
  r.holder, r.sticky, r.lease_ms = '', false, 0
  if r.attempts == 0 and r.losses == 0 then tries_drop(id) else tries_put(id, r) end
  if delay_ms > 0 then
    make_delayed(id, t, now + delay_ms)
  else
    make_ready(id, t)
  end
end

-- End at most `most` leases of one holder (`~`: of all sessions); sticky ones stay. How many ended.
local function end_leases(holder, most, how, reason)
  local index, ended_here, from = key('leased:' .. holder), 0, 0
  while ended_here < most do
    local ids = redis.call('ZRANGE', index, from, from + math.min(100, most - ended_here) - 1)
    if #ids == 0 then break end
    for i = 1, #ids do
      local t, r = task_get(ids[i]), tries_get(ids[i])
      if t and r and index_of(r.holder) == holder and not r.sticky then
        end_lease(ids[i], t, r, how, nil, reason)
        ended_here = ended_here + 1
      else
        from = from + 1
      end
    end
  end
  return ended_here
end

local function set_sticky(id, r, on)
  r.sticky = on
  tries_put(id, r)
end

-- The next lease number: view · 2^36 + n on an embedded store, the clock's microseconds (never back) elsewhere.
local function new_lease()
  if KEYS[2] then
    if not view then
      view = tonumber(redis.call('GET', KEYS[2])) or 0
      if view ~= S.view then
        set('view', view)
        set('n', 0)
      end
    end
    set('n', S.n + 1)
    return view * 68719476736 + S.n
  end
  set('n', math.max(now_us, S.n + 1))
  return S.n
end

-- The earliest thing that will happen by itself in this shard.
local function next_event()
  local at = NEVER
  local head = redis.call('ZRANGE', key('delayed'), 0, 0, 'WITHSCORES')
  if head[2] then at = tonumber(head[2]) end
  for holder in string.gmatch(S.holders, '%S+') do
    head = redis.call('ZRANGE', key('leased:' .. holder), 0, 0, 'WITHSCORES')
    if head[2] then at = math.min(at, tonumber(head[2]))
    elseif holder ~= CALLER then set('holders', without(S.holders, holder)) end
  end
  if S.ttls == 1 then
    head = redis.call('ZRANGE', key('expiring'), 0, 0, 'WITHSCORES')
    if head[2] then at = math.min(at, tonumber(head[2])) else set('ttls', 0) end
  end
  if S.paused > now then at = math.min(at, S.paused) end
  return at
end

-- Buried tasks from a rank on, at most `most` ids: buried by `till`, with a reason that begins with `prefix`.
-- How many entries were looked at comes second; whether there are more behind them, third.
local function buried_page(from, most, prefix, till)
  local page, ids, seen = redis.call('ZRANGE', key('buried'), from, from + 999, 'WITHSCORES'), {}, 0
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) > till then return ids, seen, false end
    if #ids == most then return ids, seen, true end
    local r = prefix ~= '' and tries_get(page[i])
    if prefix == '' or r and string.sub(r.reason, 1, #prefix) == prefix then ids[#ids + 1] = page[i] end
    seen = seen + 1
  end
  return ids, seen, #page == 2000
end

local function promote_due(most)
  local ids = redis.call('ZRANGEBYSCORE', key('delayed'), '-inf', text(now), 'LIMIT', 0, most)
  if #ids == 0 then return 0 end
  local bodies = redis.call('HMGET', key('tasks'), unpack(ids))
  redis.call('ZREM', key('delayed'), unpack(ids))
  local by = {}
  for i = 1, #ids do
    if bodies[i] then
      local t = decode(bodies[i])
      local list = by[t.priority] or {}
      by[t.priority] = list
      list[#list + 1], list[#list + 2] = t.deadline, ids[i]
    else
      count('strays')
    end
  end
  for priority, list in pairs(by) do
    redis.call('ZADD', key('ready:' .. priority), unpack(list))
    use_priority(priority)
  end
  woke = true
  return #ids
end

-- A task that nobody took within its TTL is buried.
local function outlived(id, t, r)
  count('outlived')
  r = r or fresh_tries()
  remember(r, 'ttl', r.attempts, '')
  bury(id, r, 'expired')
end

local function bury_expired(most)
  if S.ttls == 0 then return 0 end
  local ids = redis.call('ZRANGEBYSCORE', key('expiring'), '-inf', text(now), 'LIMIT', 0, most)
  for i = 1, #ids do
    local t, r = task_get(ids[i]), tries_get(ids[i])
    local where = t and locate(ids[i], t, r)
    if where == 'ready' or where == 'delayed' then
      index_remove(ids[i], t, r, where)
      outlived(ids[i], t, r)
    else
      redis.call('ZREM', key('expiring'), ids[i])
      count('strays')
    end
  end
  return #ids
end

-- Move what is due to ready and end what leases have run out, at most `most` of each holder's; then set the alarm anew.
local function promote(most)
  local moved = bury_expired(most)
  moved = moved + promote_due(most)
  for holder in string.gmatch(S.holders, '%S+') do
    local ids = redis.call('ZRANGEBYSCORE', key('leased:' .. holder), '-inf', text(now), 'LIMIT', 0, most)
    for i = 1, #ids do
      local t, r = task_get(ids[i]), tries_get(ids[i])
      if t and r then end_lease(ids[i], t, r, 'expired')
      else
        redis.call('ZREM', key('leased:' .. holder), ids[i])
        count('strays')
      end
    end
    moved = moved + #ids
  end
  local at = next_event()
  if at ~= S.alarm then set('alarm', at) end
  return moved
end

-- A node that waits here is told once: it takes, and registers again when it finds nothing.
local function wait_here()
  if not has(S.waiting, CALLER) then set('waiting', with(S.waiting, CALLER)) end
end

local function wake()
  local cluster, queue, shard = string.match(P, '^{([^:]+):(.*):(%d+)}$')
  local channel, place = '{' .. cluster .. '}:wake:', queue .. ' ' .. shard
  local function tell(holder, message)
    if holder ~= CALLER and holder ~= '' then
      redis.call('PUBLISH', channel .. holder, place .. ' ' .. message)
    end
  end
  if woke and S.waiting ~= '' then
    for holder in string.gmatch(S.waiting, '%S+') do tell(holder, 'ready') end
    set('waiting', '')
  end
  if alarm_lowered then
    local nearest = text(math.min(S.alarm, S.tick) - now)
    for holder in string.gmatch(S.waiting, '%S+') do
      if holder ~= S.sweeper then tell(holder, text(S.alarm - now)) end
    end
    tell(S.sweeper, nearest)
  end
  if #ended > 0 then tell_ends(channel, place) end
  if freed and S.roomless ~= '' then -- nodes where puts wait for room: each tries, and registers again when there is none
    for holder in string.gmatch(S.roomless, '%S+') do redis.call('PUBLISH', channel .. holder, place .. ' room') end
    set('roomless', '')
  end
end

-- For the scripts of sessions, which are of no shard (see session_join.lua): the time, and a node that leaves one.
local function session_now()
  local time, given = redis.call('TIME'), tonumber(ARGV[1])
  return given > 0 and given or math.floor((time[1] * 1000000 + time[2]) / 1000)
end

-- A session loses a node; with the last one its grace begins. Ms until that ends, -1 when others hold it.
local function session_detach(uuid, record, node, grace_ms, nodes)
  redis.call('HDEL', record, 'at:' .. node)
  redis.call('ZREM', key('at:' .. node), uuid)
  redis.call('HSET', record, 'nodes', text(nodes - 1))
  if nodes > 1 then return -1 end
  redis.call('ZADD', key('graces'), text(session_now() + grace_ms), uuid)
  return grace_ms
end

local function finish(items)
  if joined then return items end
  if S.paused > now then woke = false end -- nobody can take; the pause's end is an alarm, or a resume
  if woke or alarm_lowered or #ended > 0 or (freed and S.roomless ~= '') then wake() end
  if next(changed) ~= nil or counted then
    set('seq', S.seq + 1)
    if S.format == 0 then set('format', 1) end
    local fields = {}
    for field in pairs(changed) do
      local value = S[field]
      fields[#fields + 1], fields[#fields + 2] = field, value
    end
    if growing then redis.call('HSET', key('shard'), unpack(fields))
    elseif type(redis.pcall('HSET', key('shard'), unpack(fields))) == 'table' then -- the store is full, and nothing was removed yet
      redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
      redis.call('HSET', key('shard'), unpack(fields))
    end
    for name, n in pairs(counts) do redis.call('HINCRBY', key('counts'), name, n) end
  end
  return {now, S.alarm < NEVER and S.alarm or -1, woke and 1 or 0, items}
end
