-- shard: what becomes of a task in its shard, and how every script ends.
-- REPLY   finish(items) = {now_ms, next_ms | -1, woke 0|1, items}; refusals are errors `CODE
--         message`
-- A task is in exactly one of delayed, ready:<priority>, leased:<holder>, buried, or in waiting,
-- where the tasks of lanes stand whose turn has not come (see lane.lua). The holder `~<uuid>` is a
-- session's: the leases of all of them stand in `leased:~`, and `held` (zset, scores 0) has
-- `<uuid><id>` for each. Beside them: expiring (zset, waiting tasks with a TTL), waits (hash id →
-- holders), done:<id> and gone:<id> (how a task ended, for a while).

-- When a delayed task is due in its index: by its static record, unless its tries record names a
-- later time in the place of a lease.
local function delayed_at(t, r)
  return r and r.holder == '' and r.lease_ms > 0 and r.lease_ms or t.due
end

-- Where a task lies; leased and buried show in its tries record, delayed and ready by its due
-- time's index.
local function locate(id, t, r)
  if r and r.holder ~= '' then return 'leased' end
  if delayed_score(id, delayed_at(t, r)) then return 'delayed' end
  if redis.call('ZSCORE', key('ready:' .. t.priority), id) then return 'ready' end
  if t.lane and redis.call('ZSCORE', key('waiting'), laned().entry(id, t)) then return 'waiting' end
  if redis.call('ZSCORE', key('buried'), id) then return 'buried' end
  return 'lost'
end

-- The name of the index that a holder's leases stand in, after `leased:`.
local function index_of(holder) return string.byte(holder) == 126 and '~' or holder end

-- A lease leaves its indexes; its record is the caller's.
local function unlease(id, r)
  local index = index_of(r.holder)
  redis.call('ZREM', key('leased:' .. index), id)
  if index ~= r.holder then redis.call('ZREM', key('held'), string.sub(r.holder, 2) .. id) end
end

local function index_remove(id, t, r, where)
  if where == 'leased' then
    unlease(id, r)
  elseif where == 'ready' then
    redis.call('ZREM', key('ready:' .. t.priority), id)
  elseif where == 'delayed' then
    delayed_remove(id, delayed_at(t, r))
  elseif where == 'buried' then
    redis.call('ZREM', key('buried'), id)
  end
  if t.lane then laned().leave(id, t, where) end
  if t.expires > 0 then redis.call('ZREM', key('expiring'), id) end
end

-- A task with a TTL stands in `expiring` too, as long as it is ready, delayed or waiting; the
-- record says when there may be any.
local function may_expire(id, t)
  if (t.expires or 0) == 0 then return end
  redis.call('ZADD', key('expiring'), t.expires, id)
  if S.ttls == 0 then set('ttls', 1) end
  note(t.expires)
end

-- The names of the indexes in which the tasks of a state lie.
local function indexes_of(state)
  if state == 'delayed' or state == 'buried' or state == 'waiting' then return { state } end
  local names, list, prefix = {}, S.pris, 'ready:'
  if state == 'leased' then
    list, prefix = S.holders, 'leased:'
  elseif state ~= 'ready' then
    refuse(
      'BADARG the state is ' .. state .. '; allowed are delayed, ready, leased, buried, waiting'
    )
  end
  for word in string.gmatch(list, '%S+') do
    names[#names + 1] = prefix .. word
  end
  return names
end

-- Ready by its time; with a lane, as soon as its turn comes there.
local function make_ready(id, t)
  if t.lane then
    laned().enter(id, t)
  else
    redis.call('ZADD', key('ready:' .. t.priority), t.deadline, id)
    use_priority(t.priority)
    woke = true
  end
  may_expire(id, t)
end

local function make_delayed(id, t, at)
  local r, own = tries_get(id), at ~= t.due and at or 0
  if own ~= 0 and not r then r = fresh_tries() end
  if r and r.lease_ms ~= own then
    r.lease_ms = own
    tries_put(id, r)
  end
  delayed_add(id, at)
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

-- A task leaves the place where it lies; a lease on it is void from now on. row: of its account,
-- where the caller has it.
local function displace(id, row)
  local old, foreign = task_get(id, row)
  if not old and not foreign then return end
  local r, unread = tries_get(id)
  if foreign or unread then
    uproot({ id })
  else
    index_remove(id, old, r, locate(id, old, r))
  end
  if r or unread then tries_drop(id) end
end

-- Put or replace a task wherever it lies.
local function place(id, t)
  displace(id)
  task_put(id, t)
  index_add(id, t)
end

local function held(id, lease)
  local r = tries_get(id)
  if r and r.holder ~= '' and r.lease == lease then return r end
  return nil
end

-- A task is done, deleted or buried: the nodes in `waits` (hash id → holders) are told. The record
-- counts its ids, so that nobody looks for none.
local function over(id)
  if S.awaited > 0 then ended[#ended + 1] = id end
end

-- How long the end of a task is remembered: with `known` for dedup_ms, else only where somebody
-- waits to hear of it. 0: not.
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

-- A holder's node is told something of this shard. On a cluster (where the last key is the guard)
-- only the shard's own servers pass it on; one before 7.0 knows no such command.
local function tell(holder, message)
  local cluster, queue, shard = string.match(P, '^{([^:]+):(.*):(%d+)}$')
  message = queue .. ' ' .. shard .. ' ' .. message
  if
    string.byte(KEYS[#KEYS], -1) == 126
    and type(redis.pcall('SPUBLISH', P .. ':wake:' .. holder, message)) == 'number'
  then
    return
  end
  redis.call('PUBLISH', '{' .. cluster .. '}:wake:' .. holder, message)
end

local function tell_ends()
  for from = 1, #ended, 1000 do
    local ids = { unpack(ended, from, math.min(from + 999, #ended)) }
    local waits = redis.call('HMGET', key('waits'), unpack(ids))
    redis.call('HDEL', key('waits'), unpack(ids))
    for i = 1, #ids do
      for holder in string.gmatch(waits[i] or '', '%S+') do
        tell(holder, 'end:' .. ids[i])
      end
    end
  end
  set('awaited', redis.call('HLEN', key('waits')))
end

-- How leases on a task ended badly, the oldest first, and whether all of it can be read. An entry:
-- when, how (fail, expired, loss, bury, ttl), attempt, reason.
local function history_of(r)
  local hows, entries, at = { 'fail', 'expired', 'loss', 'bury', 'ttl' }, {}, 1
  while r.history and at <= #r.history do
    if at + 9 > #r.history then return entries, false end
    local ms, how, attempt, size = unpack_struct('>I6BI2B', r.history, at)
    entries[#entries + 1] =
      { ms, hows[how] or '', attempt, string.sub(r.history, at + 10, at + 9 + size), at }
    at = at + 10 + size
  end
  return entries, at <= #(r.history or '') + 1
end

-- One more for the record, the oldest is dropped.
local function remember(r, how, attempt, reason)
  local most, codes = S.history or 5, { fail = 1, expired = 2, loss = 3, bury = 4, ttl = 5 }
  if most == 0 then return end
  local entries, whole = history_of(r)
  if not whole then
    entries, r.history = {}, nil
  end
  local first = entries[#entries - most + 2]
  r.history = (first and string.sub(r.history, first[5]) or most > 1 and r.history or '')
    .. pack('>I6BI2B', now, codes[how], attempt, #reason)
    .. reason
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
  -- Small factors: doubles are exact to 2^53 only.
  local dice = (r.lease % 1000003 * 7919 + now) % 1000 / 1000
  return math.floor(wait * (1 + dice / 4))
end

-- A lock is a task that is there while somebody holds it (see lock_acquire.lua): whatever ends the
-- lease, nothing stays, and who waits is told.
local function unlock(id)
  records_drop({ id })
  tries_drop(id)
  over(id)
end

-- What was set aside is buried. A record of a task stays as it is, for a newer version or a person;
-- one of tries is written anew.
local function bury_aside()
  for from = 1, #aside, 1000 do
    local ids = { unpack(aside, from, math.min(from + 999, #aside)) }
    uproot(ids)
    for i = 1, #ids do
      if S.locks == 1 then
        unlock(ids[i]) -- nobody can show that it is his
      else
        bury(ids[i], tries_get(ids[i]) or fresh_tries(), 'unreadable')
      end
    end
  end
  aside = {}
end

-- A record that nobody can read harms only itself: before the script ends its task goes from
-- wherever it stands to `buried`, with the reason `unreadable`.
local function set_aside(id)
  if aside[id] then return end
  aside[id], aside[#aside + 1], bury_them = true, id, bury_aside
  count('unreadable')
end

-- The lock under its fence number: its body and tries record; nil when it is not held under that
-- one.
local function locked(name, fence)
  local t, r = task_get(name), tries_get(name)
  if t and r and r.holder ~= '' and unpack_struct('>d', t.payload) == fence then return t, r end
  return nil
end

-- A lease is over. how: release (attempt given back) | fail, expired (attempt kept, backoff) | loss
-- (given back, counted as a loss). delay_ms: nil for the backoff. The caller has checked that `r`
-- is the record of a leased task.
local function end_lease(id, t, r, how, delay_ms, reason)
  unlease(id, r)
  if t.lane then laned().leave(id, t, 'leased') end
  count(how)
  if S.locks == 1 then return unlock(id) end
  reason = reason and string.sub(reason, 1, 240)
  if how ~= 'release' then remember(r, how, r.attempts, reason or '') end
  if how == 'release' or how == 'loss' then r.attempts = r.attempts - 1 end
  if how == 'loss' then r.losses = math.min(r.losses + 1, 65535) end
  if how ~= 'release' and reason == nil then reason = how end
  if reason then r.reason = reason end
  local spent = t.attempts_max > 0
    and r.attempts >= t.attempts_max
    and (how == 'fail' or how == 'expired')
  if spent then return bury(id, r, r.reason) end
  if how == 'loss' and S.losses_max > 0 and r.losses >= S.losses_max then
    return bury(id, r, 'losses')
  end
  if delay_ms == nil then delay_ms = (how == 'fail' or how == 'expired') and backoff(t, r) or 0 end
  r.holder, r.sticky, r.lease_ms = '', false, 0
  if r.attempts == 0 and r.losses == 0 then
    tries_drop(id)
  else
    tries_put(id, r)
  end
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
      local t, r, unreadable = both_get(ids[i])
      if t and r and index_of(r.holder) == holder and not r.sticky then
        end_lease(ids[i], t, r, how, nil, reason)
        ended_here = ended_here + 1
      else
        if unreadable and not (r and r.sticky) then set_aside(ids[i]) end
        from = from + 1
      end
    end
  end
  return ended_here
end

-- The next lease number: view · 2^36 + n on an embedded store, the clock's microseconds (never
-- back) elsewhere.
local function new_lease()
  if KEYS[2] and string.byte(KEYS[2], -1) ~= 126 then -- on a cluster it is the guard, `<prefix>~`
    if not view then
      view = tonumber(redis.call('GET', KEYS[2])) or 0
      set('n', S.n)
      -- More than 2^36 leases of one view go on into the next: above them, and what a crash may
      -- have lost.
      if view ~= S.view then
        set('n', math.max(0, S.n + 16777216 - (view - S.view) * 68719476736))
        set('view', view)
      end
    end
    S.n = S.n + 1
    return view * 68719476736 + S.n
  end
  set('n', math.max(now_us, S.n + 1))
  return S.n
end

-- The earliest thing that will happen by itself in this shard.
local function next_event()
  local at, head, soonest = delayed_head() or NEVER, nil, lease_doubt() and now + 200 or 0
  for holder in string.gmatch(S.holders, '%S+') do
    head = redis.call('ZRANGE', key('leased:' .. holder), 0, 0, 'WITHSCORES')
    if head[2] then
      at = math.min(at, math.max(soonest, tonumber(head[2]) + S.lag))
    elseif holder ~= CALLER then
      set('holders', without(S.holders, holder))
    end
  end
  if S.ttls == 1 then
    head = redis.call('ZRANGE', key('expiring'), 0, 0, 'WITHSCORES')
    if head[2] then
      at = math.min(at, tonumber(head[2]))
    else
      set('ttls', 0)
    end
  end
  if S.slots == 1 then
    head = redis.call('ZRANGE', key('slots'), 0, 0, 'WITHSCORES')
    if head[2] then
      at = math.min(at, tonumber(head[2]))
    else
      set('slots', 0)
    end
  end
  if S.paused > now then at = math.min(at, S.paused) end
  return at
end

-- Buried tasks from a rank on, at most `most` ids: buried by `till`, with a reason that begins with
-- `prefix`. How many entries were looked at comes second; whether there are more behind them,
-- third.
local function buried_page(from, most, prefix, till)
  local page, ids, seen = redis.call('ZRANGE', key('buried'), from, from + 999, 'WITHSCORES'), {}, 0
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) > till then return ids, seen, false end
    if #ids == most then return ids, seen, true end
    local r = prefix ~= '' and tries_get(page[i])
    if prefix == '' or r and string.sub(r.reason, 1, #prefix) == prefix then
      ids[#ids + 1] = page[i]
    end
    seen = seen + 1
  end
  return ids, seen, #page == 2000
end

local function promote_due(most)
  local ids = delayed_due(most)
  if #ids == 0 then return 0 end
  local bodies = records_get(ids)
  local by = {}
  for i = 1, #ids do
    local t = bodies[i] and decode(bodies[i])
    if t then
      if t.lane then
        laned().enter(ids[i], t)
      else
        local list = by[t.priority] or {}
        by[t.priority] = list
        list[#list + 1], list[#list + 2] = t.deadline, ids[i]
      end
    elseif bodies[i] then
      set_aside(ids[i])
    else
      count('strays')
    end
  end
  for priority, list in pairs(by) do
    redis.call('ZADD', key('ready:' .. priority), unpack(list))
    use_priority(priority)
    woke = true
  end
  return #ids
end

-- Lanes whose rate lets them go on, and idle ones to forget: settle() does the rest. Those whose
-- time lies further off than any rate puts it are from before the clock was stepped back, or the
-- rate raised. How many; whether there are more of the latter.
local function open_lanes(most)
  if S.slots ~= 1 then return 0, false end
  local slots = key('slots')
  local names = redis.call('ZRANGEBYSCORE', slots, '-inf', text(now), 'LIMIT', 0, most)
  -- See lane.lua.
  local room, full_ms =
    most - #names, (S.lane_rate or 0) > 0 and (S.lane_burst or 1) * 1000000 / S.lane_rate or 0
  local latest = now + math.ceil(full_ms) + 1000
  local strange = room > 0
      and redis.call('ZRANGEBYSCORE', slots, '(' .. text(latest), '+inf', 'LIMIT', 0, room)
    or {}
  for i = 1, #strange do
    names[#names + 1] = strange[i]
  end
  if #names == 0 then return 0, false end
  redis.call('ZREM', slots, unpack(names))
  for i = 1, #names do
    laned().get(names[i])
  end
  return #names, #strange > 0 and #strange == room
end

-- A task that nobody took within its TTL is buried.
local function outlived(id, r)
  count('outlived')
  r = r or fresh_tries()
  remember(r, 'ttl', r.attempts, '')
  bury(id, r, 'expired')
end

local function bury_expired(most)
  if S.ttls == 0 then return 0 end
  local ids = redis.call('ZRANGEBYSCORE', key('expiring'), '-inf', text(now), 'LIMIT', 0, most)
  for i = 1, #ids do
    local t, r, unreadable = both_get(ids[i])
    local where = t and locate(ids[i], t, r)
    if unreadable then
      set_aside(ids[i])
    elseif where == 'ready' or where == 'delayed' or where == 'waiting' then
      index_remove(ids[i], t, r, where)
      outlived(ids[i], r)
    else
      redis.call('ZREM', key('expiring'), ids[i])
      count('strays')
    end
  end
  return #ids
end

-- End what leases have run out, at most `most`: of each holder's its share, so that no crowd of one
-- keeps the others' waiting.
local function end_run_out(most)
  local ended_till, left, holders = text(lease_doubt() and known or now - S.lag), most, {}
  for holder in string.gmatch(S.holders, '%S+') do
    holders[#holders + 1] = holder
  end
  for h, holder in ipairs(holders) do
    local share = math.ceil(left / (#holders - h + 1))
    local ids =
      redis.call('ZRANGEBYSCORE', key('leased:' .. holder), '-inf', ended_till, 'LIMIT', 0, share)
    for i = 1, #ids do
      local t, r, unreadable = both_get(ids[i])
      if t and r then
        end_lease(ids[i], t, r, 'expired')
      elseif unreadable then
        set_aside(ids[i])
      else
        redis.call('ZREM', key('leased:' .. holder), ids[i])
        count('strays')
      end
    end
    left = left - #ids
  end
  return most - left
end

-- Move what is due to ready and end what leases have run out, at most `most` in all; then set the
-- alarm anew: in the past, when there is more. What is due has the rest, and at least an eighth: so
-- much that a crowd of one kind holds up the others for a few calls only.
local function promote(most)
  local left, more = most, nil
  local function half() return math.ceil(left / 2) end
  left = left - bury_expired(half())
  left = left - end_run_out(half())
  local opened
  opened, more = open_lanes(half())
  left = left - opened
  left = left - promote_due(left)
  local moved = most - left
  if #aside > 0 then bury_them() end
  if lanes then lanes.settle() end
  local at = next_event()
  if more then at = now end
  if at ~= S.alarm then set('alarm', at) end
  return moved
end

local function wake()
  local function tell_other(holder, message)
    if holder ~= CALLER and holder ~= '' then tell(holder, message) end
  end
  if woke and S.waiting ~= '' then
    if for_all then
      tell(CALLER, 'ready')
      woke = false
    end
    for holder in string.gmatch(S.waiting, '%S+') do
      tell_other(holder, 'ready')
    end
    set('waiting', '')
  end
  if alarm_lowered then
    local nearest = text(math.min(S.alarm, S.tick) - now)
    for holder in string.gmatch(S.waiting, '%S+') do
      if holder ~= S.sweeper then tell_other(holder, text(S.alarm - now)) end
    end
    tell_other(S.sweeper, nearest)
  end
  if #ended > 0 then tell_ends() end
  -- Nodes where puts wait for room: each tries, and registers again when there is none.
  if freed and S.roomless ~= '' then
    for holder in string.gmatch(S.roomless, '%S+') do
      tell(holder, 'room')
    end
    set('roomless', '')
  end
end

local function finish(items)
  if lanes then lanes.settle() end
  if joined then return items end
  if #aside > 0 then
    bury_them()
    if lanes then lanes.settle() end
  end
  -- Nobody can take; the pause's end is an alarm, or a resume.
  if S.paused > now then woke = false end
  if (woke and S.waiting ~= '') or alarm_lowered or #ended > 0 or (freed and S.roomless ~= '') then
    wake()
  end
  if next(changed) ~= nil or counted then
    set('seq', math.max(S.seq + 1, clock_us))
    if S.format < FORMAT then set('format', FORMAT) end
    local fields = {}
    for field in pairs(changed) do
      local value = S[field]
      fields[#fields + 1], fields[#fields + 2] = field, value
    end
    if growing then
      redis.call('HSET', key('shard'), unpack(fields))
    elseif type(redis.pcall('HSET', key('shard'), unpack(fields))) == 'table' then
      -- The store is full, and nothing was removed yet.
      redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
      redis.call('HSET', key('shard'), unpack(fields))
    end
    for name, n in pairs(counts) do
      redis.call('HINCRBY', key('counts'), name, n)
    end
  end
  keep_record()
  return { now, S.alarm < NEVER and S.alarm or -1, woke and 1 or 0, items }
end
