-- indexes: in which index of the shard a task stands, and how it goes from one to another.
-- A task is in exactly one of delayed, ready:<priority>, leased:<holder>, buried, or in waiting,
-- where the tasks of lanes stand whose turn has not come (see lane.lua). The holder `~<uuid>` is a
-- session's: the leases of all of them stand in `leased:~`, and `held` (zset, scores 0) has
-- `<uuid><id>` for each. Beside them: expiring (zset, tasks with a TTL that nobody has taken).

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
local function put_task(id, t)
  displace(id)
  task_put(id, t)
  index_add(id, t)
end
