-- job_numbers: gives out numbers for the jobs of the beanstalkd door, which only grow, and one for
-- each tube that has jobs.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 how many numbers for jobs
--         4 tubes at most
--         5… queues that are tubes and want their number
-- RETURNS {the last number given out, per queue: its number | -1: there are as many as may be}
-- `tubes` (hash): `jobs`, the last number given out; `many`, how many tubes there are; `+<queue>`,
-- a queue's number; `-<number>`, that queue.
local many, most, reply = int(3, 'numbers', 0, 1000000), int(4, 'tubes', 1, 1000000), {}
reply[1] = redis.call('HINCRBY', key('tubes'), 'jobs', many)
for i = 5, #ARGV do
  local number = tonumber(redis.call('HGET', key('tubes'), '+' .. ARGV[i]))
  if not number then
    number = tonumber(redis.call('HGET', key('tubes'), 'many') or 0)
    if number >= most then
      number = -1
    else
      redis.call('HSET', key('tubes'), '+' .. ARGV[i], number, '-' .. text(number), ARGV[i])
      redis.call('HSET', key('tubes'), 'many', number + 1)
    end
  end
  reply[#reply + 1] = number
end
return reply
