-- results: how the end of a task is remembered for a while, and which nodes wait to hear of it; and
-- when the latest task of a schedule went.
-- Keys of a shard: waits (hash id → holders), done:<id> and gone:<id> (how a task ended); runs
-- (hash schedule → its latest run: `due_ms put_ms tick|hand id`, and ` done|deleted ms` behind it
-- once its task has gone), run_of (hash id → schedule, of runs whose tasks have not gone). `runs`
-- of the record counts the latter, so that shards without them look for none.

-- A task is done, deleted or buried: the nodes in `waits` (hash id → holders) are told. The record
-- counts its ids, so that nobody looks for none. gone (done | deleted): its records were removed
-- before, so that a full store lets the script go on; where it was the latest of a schedule, the
-- run says so. Ids that we make have no colon, those of schedules have one.
local function over(id, gone)
  if S.awaited > 0 then ended[#ended + 1] = id end
  if not gone or S.runs == 0 or not string.find(id, ':', 1, true) then return end
  local name = redis.call('HGET', key('run_of'), id)
  if not name then return end
  redis.call('HDEL', key('run_of'), id)
  set('runs', redis.call('HLEN', key('run_of')))
  local run = redis.call('HGET', key('runs'), name)
  if run and string.match(run, '^%d+ %d+ %l+ (%S+)$') == id then
    redis.call('HSET', key('runs'), name, run .. ' ' .. gone .. ' ' .. text(now))
  end
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
  over(id, 'deleted')
end

-- This node is told when the task ends.
local function await_end(id)
  local holders = redis.call('HGET', key('waits'), id) or ''
  if has(holders, CALLER) then return end
  redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
  redis.call('HSET', key('waits'), id, with(holders, CALLER))
  if holders == '' then set('awaited', S.awaited + 1) end
end
