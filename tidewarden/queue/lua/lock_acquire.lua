-- lock_acquire: acquires locks. A lock is a task that exists while somebody holds it: its lease is
-- the hold, its payload the fence number and the KEY.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per lock: name, KEY, lease ms, take 0|1 (0: only what this KEY holds already), note
--         0|1 (tell this node when it is free), the uuid of the session whose the lease is ("": the
--         caller's)
-- RETURNS per lock: {fence, lease, lease_end_ms}; not acquired: {0, 0, the end of its holder's
--         lease ms | 0: it is free}
-- Errors  STALE: the caller's boot was declared dead
-- The fence is the lease number of the first acquire. The same KEY again gets the same fence under
-- a new lease number: the end of the connection that asked first, which carries the old one, ends
-- nothing.
open()
effect = 'grows'
alive(CALLER)
local wants = {}
for i = 3, #ARGV, 6 do
  local name, owner, uuid = ARGV[i], ARGV[i + 1], ARGV[i + 5]
  if not uuid or name == '' or owner == '' then
    refuse('BADARG a lock has six arguments: name, KEY, lease ms, take, note, session')
  end
  if uuid ~= '' and (#uuid ~= 32 or not string.match(uuid, '^%x+$')) then
    refuse('BADARG the session of a lock is no uuid: ' .. uuid)
  end
  local holder = uuid == '' and CALLER or '~' .. uuid
  wants[#wants + 1] = {
    name,
    owner,
    int(i + 2, 'lease ms', 1, NEVER / 2),
    ARGV[i + 3] == '1',
    ARGV[i + 4] == '1',
    holder,
  }
end
if #wants == 0 or #wants > 1000 then refuse('BADARG one script takes 1 to 1000 locks') end
-- From now on the end of a lease in this shard removes its task.
if S.locks ~= 1 then set('locks', 1) end
if now >= S.alarm then promote(200) end

local function hold(name, fence, lease, lease_ms, holder)
  local r, lease_end, index = fresh_tries(), now + lease_ms, index_of(holder)
  r.lease, r.attempts, r.own, r.lease_ms, r.holder = lease, 1, true, lease_ms, holder
  tries_put(name, r)
  redis.call('ZADD', key('leased:' .. index), text(lease_clock() + lease_ms), name)
  if index ~= holder then redis.call('ZADD', key('held'), '0', string.sub(holder, 2) .. name) end
  if not has(S.holders, index) then set('holders', with(S.holders, index)) end
  note(lease_end)
  return { fence, lease, lease_end }
end

local function acquire(name, owner, lease_ms, take, tell, holder)
  local t, r, unreadable = both_get(name)
  if unreadable then -- somebody's, as long as its lease runs
    local lease_end = lease_end_of(name) or 0
    if lease_end > now or lease_doubt() and lease_end > known + S.lag then
      if tell then await_end(name) end
      return { 0, 0, lease_end }
    end
    count('unreadable')
    uproot({ name })
    unlock(name)
  elseif t and r and r.holder ~= '' then
    local lease_end = tonumber(
      redis.call('ZSCORE', key('leased:' .. index_of(r.holder)), name) or 0
    ) + S.lag
    if lease_end > now or lease_doubt() and lease_end > known + S.lag then
      if string.sub(t.payload, 9) ~= owner then
        if tell then await_end(name) end
        return { 0, 0, lease_end }
      end
      unlease(name, r)
      count('kept')
      return hold(name, (unpack_struct('>d', t.payload)), new_lease(), lease_ms, holder)
    end
    end_lease(name, t, r, 'expired')
  elseif t then -- where a repair left it
    index_remove(name, t, r, locate(name, t, r))
  end
  if not take then return { 0, 0, 0 } end
  local lease = new_lease()
  task_put(name, {
    priority = 50,
    due = now,
    deadline = now,
    lease_ms = 0,
    attempts_max = 0,
    backoff_ms = 0,
    own = true,
    expires = 0,
    payload = pack('>d', lease) .. owner,
  })
  count('acquired')
  return hold(name, lease, lease, lease_ms, holder)
end

local reply = {}
for i = 1, #wants do
  reply[i] = acquire(unpack(wants[i]))
end
return finish(reply)
