"""``headway doctor``."""

DOCTOR = {
    # titles and names
    "versions": "版本",
    "machine": "机器",
    "graphics": "显卡",
    "library": "C++ 库",
    "tables": "测速表",
    "results": "计算结果",
    "settings": "设置",
    "files": "文件",
    "fonts": "字体",
    "system": "系统",
    "processor": "处理器",
    "cores": "核数",
    "threads": "线程数",
    "float32 matmul precision": "float32 矩阵乘法精度",
    "file": "文件",
    "interface": "接口版本",
    "instruction set": "指令集",
    "loaded": "已加载",
    "compiler": "编译器",
    "bounds": "上限",
    "cache of headway": "headway 的缓存",
    "published weights": "已发布的权重",
    "weights there": "其中的权重",
    "cache of the hub": "Hub 的缓存",
    "cache of the Hugging Face hub": "Hugging Face Hub 的缓存",
    "models there": "其中的模型",
    "Chinese in pictures": "图中的中文",
    "error": "错误",
    "broken": "有故障",
    "missing, or to be improved": "缺少，或可以改进",
    "missing": "没有安装",
    "available": "可用",
    "none found": "没有找到",
    "What is installed works.": "已经安装的都能正常工作。",
    "Something is broken; see above.": "有东西出了故障，见上文。",
    # what packages are for
    "the command line": "命令行",
    "tables of the command line": "命令行的表格",
    "reports": "报告",
    "pictures, published models, word vectors": "图、已发布的模型、词向量",
    "pictures": "图",
    "published models, files of word vectors": "已发布的模型、词向量文件",
    "tokenizers of published models": "已发布模型的分词器",
    "models by their ids on the Hugging Face hub": "按 Hugging Face Hub 上的仓库名取模型",
    "GGUF files": "GGUF 文件",
    "word vectors that are counted": "靠统计得到的词向量",
    "word2vec and fastText": "word2vec 和 fastText",
    "Chinese text cut into words": "中文分词",
    "reports in notebooks whose kernel answers": "笔记本里能与内核交互的报告",
    "trainings as jobs of Slurm": "作为 Slurm 作业的训练",
    "trainings on a Ray cluster": "在 Ray 集群上训练",
    "packages of Debian, whose messages a lesson translates": "Debian 软件包，有一课翻译其中的消息",
    "catalogues of messages": "消息目录",
    "scores of translations": "译文的得分",
    "models of transformers on headway's attention: {command}": (
        "让 transformers 的模型用 headway 的注意力：{command}"
    ),
    # environment variables
    "the instruction set of the CPU kernel": "CPU 内核的指令集",
    "the matrix products of linear maps: auto, onednn or torch": "线性映射的矩阵乘法：auto、onednn 或 torch",
    "the file of the CPU kernel's C++ library": "CPU 内核的 C++ 库文件",
    "the folder in which headway keeps models that it trained, and names for completion": (
        "headway 存放自己训练的模型和补全用的名称的文件夹"
    ),
    "the table of `headway tune`, or a folder of them; off for none": (
        "`headway tune` 的表，或放这些表的文件夹；off 表示不用"
    ),
    "the folder of the published weights that `make weights` downloads": "`make weights` 下载的已发布权重的文件夹",
    "the folder of texts for lessons that headway does not include": "课程所用、headway 不附带的文本的文件夹",
    # facts
    "{version}, in {folder}": "{version}，位于 {folder}",
    "none: this torch was built without it": "无：这个 torch 编译时没有包含它",
    "no device": "没有设备",
    "{isa}, of {isas}": "{isa}（可选 {isas}）",
    "verified and measured on {date}, {count} rows": "{date} 验证并测量过，{count} 行",
    "not verified on this machine: {known}": "在这台机器上没有验证过：{known}",
    "auto leaves what it can to torch": "auto 把能交给 torch 的都交给 torch",
    "as measured on other machines ({names})": "照其他机器上的测量（{names}）",
    "{output:g} for outputs, {gradient:g} for gradients": "输出 {output:g}，梯度 {gradient:g}",
    "times the error of the naive computation in the same dtype": "以同一 dtype 下朴素计算的误差为 1",
    "right: output {output:.2f}, gradients {gradients:.2f}": "正确：输出 {output:.2f}，梯度 {gradients:.2f}",
    "no pictures without matplotlib": "没有 matplotlib，画不了图",
    # faults and remedies
    "{title} cannot be examined: {why}": "“{title}”一项无法检查：{why}",
    "{command} builds the library again; if that does not help, report it with this page": (
        "{command} 会重新编译这个库；如果没有用，请附上本页报告问题"
    ),
    "{name} {there} is older than {least}, which headway needs": "{name} {there} 太旧，headway 需要 {least} 以上",
    "{name} {there} is installed, and Python does not find it": "{name} {there} 已经安装，但 Python 找不到它",
    "not installed: {names}": "没有安装：{names}",
    "torch has {threads} threads for {cores} cores, which slows it down": (
        "torch 在 {cores} 个核上开了 {threads} 个线程，这会变慢"
    ),
    "set OMP_NUM_THREADS={cores}, or call torch.set_num_threads({cores})": (
        "请设 OMP_NUM_THREADS={cores}，或调用 torch.set_num_threads({cores})"
    ),
    "this machine has an NVIDIA driver, and this torch was built without CUDA": (
        "这台机器有 NVIDIA 驱动，而这个 torch 编译时没有包含 CUDA"
    ),
    "install another build of torch: https://pytorch.org/get-started/locally": (
        "请安装 torch 的另一种编译版本：https://pytorch.org/get-started/locally"
    ),
    "it gives no reason": "没有给出原因",
    "this machine has an NVIDIA driver, but torch finds no device: {why}": (
        "这台机器有 NVIDIA 驱动，但 torch 找不到设备：{why}"
    ),
    "run nvidia-smi; if it shows a device, install the build of torch for its CUDA version": (
        "请运行 nvidia-smi；如果它列出了设备，就安装与其 CUDA 版本对应的 torch"
    ),
    "the kernel cpu cannot run: {why}": "内核 cpu 无法运行：{why}",
    "unset {variable}": "请取消设置 {variable}",
    "the kernel cpu cannot run, and auto takes slower ones: {why}": "内核 cpu 无法运行，auto 只好用较慢的内核：{why}",
    "report it with this page, which names the build of torch": "请附上本页报告问题，页上有 torch 的编译版本",
    "the kernel {name} is wrong on {place}: {what}": "内核 {name} 在 {place} 上算错了：{what}",
    "nothing was measured on {place}": "在 {place} 上什么都没有测过",
    "the kernel {what} computes wrong numbers: {why}": "内核 {what} 算出的数字不对：{why}",
    "there are {names}": "可以设的有 {names}",
    "did you mean {names}?": "是不是想写 {names}？",
    "{name} is set, and headway does not read it": "设了 {name}，但 headway 不读它",
    "HEADWAY_DATA is {data}, which is not a folder": "HEADWAY_DATA 是 {data}，但那不是文件夹",
    "name a folder, or unset it": "请给出一个文件夹，或取消设置",
    "set HEADWAY_CACHE to a folder": "请把 HEADWAY_CACHE 设为一个文件夹",
    "make it writable, or set {variable} to another folder": "请让它可写，或把 {variable} 设为另一个文件夹",
    "the {what}, {folder}, cannot be written to: {why}": "{what}（{folder}）无法写入：{why}",
    "{there} is a file": "{there} 是文件",
}
