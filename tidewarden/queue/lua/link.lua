-- link: links a queue to a topic, or unlinks it. The first link makes the topic, which stays, also
-- without any.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the topic
--         4 the queue
--         5 link 1 | unlink 0
--         6 queues of a topic at most
--         7 topics at most
--         8 the user who makes it ("": nobody in particular)
--         9 the part of them that one user may make, in thousandths
-- RETURNS {word, names of the topic's queues}; word: 1 done, 0 it was so, 'QUEUE' the topic's name
--         is a queue's, 'TOPIC' the queue's name is a topic's, 'NONE' there is no such topic,
--         'GONE' there is no such queue, 'MANY' it has as many queues as it may, 'FULL' it is new,
--         and there are as many topics as there may be; error FULL: the user has its share of
--         topics
local topic, queue, on = ARGV[3], ARGV[4], ARGV[5] == '1'
local stored = redis.call('HGET', key('topics'), topic)
local links, total = stored or '', 0
if on and redis.call('HEXISTS', key('queues'), topic) == 1 then return { 'QUEUE', '' } end
if on and (queue == topic or redis.call('HEXISTS', key('topics'), queue) == 1) then
  return { 'TOPIC', '' }
end
if not on and not stored then return { 'NONE', '' } end
if on and redis.call('HEXISTS', key('queues'), queue) == 0 then return { 'GONE', '' } end
if has(links, queue) == on then return { 0, links } end
for _ in string.gmatch(links, '%S+') do
  total = total + 1
end
if on and total >= int(6, 'queues of a topic', 1, 1000000) then return { 'MANY', links } end
if on then
  links = with(links, queue)
else
  links = without(links, queue)
end
local share = shares()
local needed, had = share.needed('topic', links), stored and share.places('topic', topic) or 0
local maker = stored and share.maker('topic', topic) or ARGV[8]
if on and needed > had then
  local most = int(7, 'topics', 0, 1000000)
  local there = share.all('topic', redis.call('HLEN', key('topics')))
  if there + needed - had > most then
    if not stored then return { 'FULL', '' } end
    refuse('FULL there is no room for so many links: in limits.queues_max 16 count as a topic')
  end
  local mine, part = share.of('topic', maker), int(9, 'share', 1, 1000)
  share.check(maker, 'topics', 'limits.queues_max', mine, there, most, part, needed - had)
end
redis.call('HDEL', key('topics'), '') -- a removal first: a full store lets the script go on
redis.call('HSET', key('topics'), topic, links)
share.resized('topic', topic, maker, needed)
redis.call('PUBLISH', key('queues'), topic)
return { 1, links }
