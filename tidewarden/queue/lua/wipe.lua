-- wipe: removes what the shard of a dropped queue has beside its tasks, which are gone. Its record
-- stays for a while, so that who comes late finds that the shard is closed; a new queue of the same
-- name takes it over, with the number of its last lease.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 for how long the record stays (ms)
-- RETURNS 1; 'NOTEMPTY': it holds tasks or has schedules, and nothing was done
open()
local kept_ms = int(3, 'time', 1, NEVER)
if not no_tasks() or redis.call('EXISTS', key('schedules')) == 1 then return finish('NOTEMPTY') end
local KEPT = ' format layout n view seq steps lag epoch sweeper dead floor '
local raw, gone = redis.call('HGETALL', key('shard')), {}
for i = 1, #raw, 2 do
  -- What a node's calls are known by stays, so that none of them runs twice.
  if not has(KEPT, raw[i]) and not string.find(raw[i], '^[ba][yt]:') then
    gone[#gone + 1] = raw[i]
  end
end
redis.call('UNLINK', key('counts'), key('tally'), key('lanes'), key('slots'), key('waits'))
redis.call('UNLINK', key('runs'), key('run_of'))
if #gone > 0 then redis.call('HDEL', key('shard'), unpack(gone)) end
S = nil
open()
set('layout', S.layout) -- The record is written, with a new `seq`: no other library's copy counts.
local reply = finish(1)
redis.call('PEXPIRE', key('shard'), kept_ms)
return reply
