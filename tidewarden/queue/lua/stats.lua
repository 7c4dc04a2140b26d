-- stats: counts the tasks of one shard by state; changes nothing.
-- DURABILITY none
-- GROWS   no
-- READS
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- RETURNS {delayed, ready, leased, buried, paused until ms, waiting nodes, oldest ready
--         due/deadline ms | -1, next ms | -1, epoch, counters, schedules, waiting in lanes}
open()
local ready, leased, nodes, oldest = 0, 0, 0, -1
for word in string.gmatch(S.pris, '%S+') do
  ready = ready + redis.call('ZCARD', key('ready:' .. word))
  local head = redis.call('ZRANGE', key('ready:' .. word), 0, 0, 'WITHSCORES')
  if head[2] and (oldest < 0 or tonumber(head[2]) < oldest) then oldest = tonumber(head[2]) end
end
for word in string.gmatch(S.holders, '%S+') do
  leased = leased + redis.call('ZCARD', key('leased:' .. word))
end
for _ in string.gmatch(S.waiting, '%S+') do
  nodes = nodes + 1
end
local counters = redis.call('HGETALL', key('counts'))
for name, field in pairs(IN_RECORD) do
  if S[field] then
    counters[#counters + 1], counters[#counters + 2] = name, text(S[field])
  end
end
return finish({
  S.later,
  ready,
  leased,
  redis.call('ZCARD', key('buried')),
  S.paused > now and S.paused or 0,
  nodes,
  oldest,
  S.alarm < NEVER and S.alarm or -1,
  S.epoch,
  counters,
  redis.call('ZCARD', key('ticks')),
  redis.call('ZCARD', key('waiting')),
})
